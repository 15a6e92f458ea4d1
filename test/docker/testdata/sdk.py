"""What people do with Docker's Python SDK: sdk.py SOCKET, with the image app there."""

import io
import itertools
import sys
import tarfile
import time

import docker
from docker.errors import APIError, ContainerError, ImageNotFound, NotFound

client = docker.DockerClient(base_url="unix://" + sys.argv[1])
quiet = {"network_mode": "none"}
began = int(time.time())


def check(what, got, want):
    if got != want:
        sys.exit(f"{what}: got {got!r}, want {want!r}")


def refused(what, kind, text, call):
    try:
        got = call()
    except kind as e:
        if text not in str(e):
            sys.exit(f"{what}: {e}, want {text!r} in it")
        return
    sys.exit(f"{what}: got {got!r}, want {kind.__name__}")


check("ping", client.ping(), True)
check("version", client.version()["MinAPIVersion"], "1.41")
check("info", client.info()["Driver"], "fre")

# Images.
app = client.images.get("app")
check("list", [i.tags for i in client.images.list()], [["app:latest"]])
check("list by name", client.images.list(name="app", filters={"dangling": False}), [app])
check("labels", app.labels, {"kind": "app"})
check("history", app.history()[0]["Id"], app.id)
check("tag", app.tag("other", "1"), True)
archive = b"".join(app.save(named=True))
check("untag", client.images.remove("other:1"), None)
check("load", client.images.load(archive)[0].id, app.id)
refused("load of no archive", APIError, "400", lambda: list(client.images.load(b"no archive")))
layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as t:
    t.addfile(tarfile.TarInfo("file"))
client.api.import_image_from_data(layer.getvalue(), "imported", "1", changes=["CMD true"])
check("import", client.images.get("imported:1").attrs["Config"]["Cmd"], ["/bin/sh", "-c", "true"])
client.images.remove("imported:1")
refused("get of none", ImageNotFound, "No such image", lambda: client.images.get("imported:1"))

# Runs to their end.
run = client.containers.run
check("run", run("app", remove=True, **quiet), b"by|default\n")
check("run without a network named", run("app", ["args", "x"], remove=True), b"x\n")
check("run of a line", run("app", "args a b", remove=True, **quiet), b"a|b\n")
check("run, streamed", list(run("app", "args a", remove=True, stream=True, **quiet)), [b"a\n"])
refused("run that fails", ContainerError, "exit status 7", lambda: run("app", "exit 7", remove=True, **quiet))
run("app", "write /work/kept kept", mounts=[docker.types.Mount("/work", "fre-work")], remove=True, **quiet)
everything = run(
    "app", "cat /work/kept /data/file", entrypoint="/bin/prog", environment={"A": "1"}, working_dir="/data", user="worker",
    mem_limit="64m", memswap_limit="64m", nano_cpus=500000000, pids_limit=20, hostname="h", labels={"x": "y"}, read_only=True,
    volumes={"fre-work": {"bind": "/work", "mode": "ro"}}, tmpfs={"/tmp": "size=8m"}, shm_size="64m",
    ulimits=[docker.types.Ulimit(name="nofile", soft=99, hard=99)], remove=True, **quiet,
)
check("run with everything", everything, b"keptfrom the image")
refused("privileged", APIError, "FRE has no privileged", lambda: run("app", privileged=True, **quiet))
refused("host directory", APIError, "FRE has no mounts", lambda: run("app", volumes=["/etc:/work"], **quiet))

# One that stays.
c = run("app", "orders", detach=True, stdin_open=True, name="box", **quiet)
c.reload()
check("status", (c.status, c.name, c.image.id), ("running", "box", app.id))
check("list", client.containers.list(filters={"name": "box", "status": "running"}), [c])
check("get by a part of the id", client.containers.get(c.id[:8]), c)
lines = c.logs(stream=True, follow=True)
check("log, followed", next(lines), b"> ready\n")
streams = c.attach_socket(params={"stdin": 1, "stdout": 1, "stream": 1})
getattr(streams, "_sock", streams).sendall(b"args hello\n")
check("log of what stdin asked for", b"".join(next(lines) for _ in range(2)), b"hello\n> ok\n")
check("log", c.logs(), b"> ready\nhello\n> ok\n")
check("tail", c.logs(tail=1), b"> ok\n")
check("log since", c.logs(since=began + 3600), b"")
check("times", c.logs(timestamps=True).startswith(b"20"), True)
stats = c.stats(stream=False)
check("stats", (stats["pids_stats"]["current"] > 0, stats["memory_stats"]["usage"] > 0, stats["cpu_stats"]["cpu_usage"]["total_usage"] > 0), (True, True, True))
measured = c.stats(decode=True)
check("stats, streamed", next(measured)["name"], "/box")
check("top", c.top()["Processes"][0][-1], "/bin/prog orders")
refused("remove while it runs", APIError, "409", c.remove)
refused("exec", APIError, "FRE has no exec", lambda: c.exec_run("ls"))
refused("resize", APIError, "no terminal", lambda: c.resize(24, 80))
c.rename("other")
c.stop(timeout=0)
check("wait", c.wait()["StatusCode"] in (2, 137), True)  # as Go programs end by SIGTERM, if there is time
c.start()
c.restart(timeout=0)
c.kill()
check("wait after kill", c.wait()["StatusCode"], 137)
c.remove()
refused("get of none", NotFound, "No such container", lambda: client.containers.get("other"))
check("stats, to the end", {m["id"] for m in measured} <= {c.id}, True)

events = client.events(since=began, until=int(time.time()) + 1, decode=True, filters={"container": c.id})
check("events", [action for action, _ in itertools.groupby(e["Action"] for e in events)], ["create", "start", "attach", "rename", "kill", "die", "stop", "start", "kill", "die", "stop", "start", "restart", "kill", "die", "destroy"])
check("networks", [n.name for n in client.networks.list()], ["bridge", "host", "none"])
check("volumes", [v.name for v in client.volumes.list()], ["fre-work"])
check("df", client.df()["Images"][0]["Id"], app.id)
client.containers.create("app", **quiet)
check("prune", len(client.containers.prune()["ContainersDeleted"]), 1)
check("list at the end", client.containers.list(all=True), [])
