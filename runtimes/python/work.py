# Installs and compiles at build time, in a sandbox, with the base environment's
# own interpreter: python3 work.py install|compile JOBS.json
#
# install: [{"dir": target directory, "requirements": file, "index": URL of the package
# index or ""}, …]. Runs one uv per job and prints the job's number when it is installed.
# compile: [{"root": directory, "place": the directory's path in the image, "out": output
# directory of the bytecode ("" for root), "check": whether the interpreter compares
# bytecode and source at every start}, …].
import json
import os
import py_compile
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

UV = ["/function/uv", "pip", "install", "--quiet", "--no-progress", "--no-deps", "--require-hashes",
      "--only-binary", ":all:", "--python", sys.executable]


def install(i, job):
    env = dict(os.environ, UV_DEFAULT_INDEX=job["index"], UV_INDEX="") if job["index"] else None
    p = subprocess.run([*UV, "--target", job["dir"], "-r", job["requirements"]], stderr=subprocess.PIPE, env=env, check=False)
    if p.returncode == 0:
        os.write(1, b"%d\n" % i)
    return p.returncode, p.stderr.decode("utf-8", "replace")


def sources(job):
    for path, dirs, names in os.walk(job["root"]):
        dirs[:] = sorted(d for d in dirs if d != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py") and os.path.isfile(os.path.join(path, name)):
                yield job, os.path.relpath(path, job["root"]), name


def compile_file(job, rel, name):
    source = os.path.join(job["root"], rel, name)
    cache = os.path.join(job["out"] or job["root"], rel, "__pycache__")
    target = os.path.join(cache, "%s.%s.pyc" % (name[:-3], sys.implementation.cache_tag))
    mode = py_compile.PycInvalidationMode
    os.makedirs(cache, exist_ok=True)
    try:
        py_compile.compile(
            source, target, os.path.normpath(os.path.join(job["place"], rel, name)), doraise=True,
            invalidation_mode=mode.CHECKED_HASH if job["check"] else mode.UNCHECKED_HASH,
        )
    except (py_compile.PyCompileError, ValueError, RecursionError):
        pass  # a file for another Python version: only its import would fail


def main():
    jobs = json.load(open(sys.argv[2]))
    if sys.argv[1] == "install":
        with ThreadPoolExecutor(4) as pool:
            failed = [words for code, words in pool.map(install, range(len(jobs)), jobs) if code]
        sys.stderr.write("".join(failed))
        sys.exit(bool(failed))
    files = [f for job in jobs for f in sources(job)]
    count = os.cpu_count() or 1
    children = []
    for i in range(count):  # multiprocessing needs /dev/shm
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for f in files[i::count]:
                    compile_file(*f)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))


main()
