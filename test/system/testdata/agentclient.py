"""A client nobody here wrote, the package mcp of PyPI, uses fre mcp: python agentclient.py FRE ARG..."""
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


# A picture of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = sorted(tool.name for tool in (await session.list_tools()).tools)
        assert tools == ["create_sandbox", "exec", "list_files", "read_file", "remove_sandbox", "run_code", "snapshot", "write_file"], tools

        async def call(name, **arguments):
            result = await session.call_tool(name, arguments)
            text = "".join(part.text for part in result.content if part.type == "text")
            return result.isError, text, result.structuredContent

        async def read(path):
            return (await session.call_tool("read_file", {"path": path})).content

        async def done(name, **arguments):
            failed, text, structured = await call(name, **arguments)
            assert not failed, (name, arguments, text)
            return structured or json.loads(text)

        async def refused(next, name, **arguments):
            failed, text, structured = await call(name, **arguments)
            assert failed and next in text and structured["error"], (name, arguments, text, structured)

        await done("write_file", path="src/hello.sh", content="echo héllo from $PWD; exit 3\n")
        ran = await done("exec", command="sh src/hello.sh; code=$?; echo err >&2; exit $code")
        assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("héllo from /work\n", "err\n", 3), ran
        ran = await done("run_code", language="sh", code="read_nothing() { cat; }\necho $((6 * 7))\n")
        assert ran["stdout"] == "42\n" and ran["exit_code"] == 0, ran
        ran = await done("exec", command="head -c 1000000 /dev/zero | tr '\\0' x")
        assert "bytes omitted: " in ran["stdout"] and len(ran["stdout"]) < 70000, len(ran["stdout"])
        ran = await done("exec", command="sleep 600", timeout_seconds=1)
        assert ran["timed_out"], ran
        await done("write_file", path="raw", content="//4A", base64=True)
        assert (await done("read_file", path="raw"))["content"] == "//4A"
        part = await done("read_file", path="src/hello.sh", offset=5, length=6)
        assert part["content"] == "héllo" and part["truncated"], part
        files = await done("list_files")
        assert [f["name"] for f in sorted(files["entries"], key=lambda f: f["name"])] == ["raw", "src"], files
        await done("write_file", path="src/hello.sh", content="<b>x & y</b>", mode="755")
        await done("write_file", path="src/hello.sh", content="<i>x & y</i>")
        assert [part.text for part in await read("src/hello.sh")] == ["<i>x & y</i>"]
        ran = await done("exec", command="test -x src/hello.sh; echo $?")
        assert ran["stdout"] == "0\n", ran
        await done("write_file", path="dot.png", content=DOT, base64=True)
        assert [(part.type, part.mimeType, part.data) for part in await read("dot.png")] == [("image", "image/png", DOT)]
        await done("write_file", path="long", content="é€😀" * 20000)
        seen, part = "", {"next": "offset 0"}
        while "next" in part:
            part = await done("read_file", path="long", offset=int(part["next"].split()[-1]))
            assert "base64" not in part, part["next"]
            seen += part["content"]
        assert seen == "é€😀" * 20000, len(seen)
        await done("exec", command="rm long; mkdir many; cd many; seq -w 2000 | xargs touch; cd ..; rm dot.png")
        seen, files = [], {"next": "0"}
        while "next" in files:
            files = await done("list_files", path="many", offset=len(seen))
            assert len(json.dumps(files)) < 100000, len(json.dumps(files))
            seen += [f["name"] for f in files["entries"]]
        assert seen == ["%04d" % i for i in range(1, 2001)], len(seen)
        ran = await done("exec", command="tail /dev/zero")
        assert ran["exit_code"] == 137 and "out of memory" in ran["warning"], ran
        await done("write_file", path="src/hello.sh", content="echo héllo from $PWD; exit 3\n")
        await refused("list the directory", "read_file", path="missing")
        await refused("write below /work", "write_file", path="/etc/x", content="")
        await refused("use python, node or sh", "run_code", language="cobol", code="")
        await refused("fre agent create", "exec", command="true", sandbox="agent-0000000000000000")

        snapshot = await done("snapshot")
        other = await done("create_sandbox", snapshot=snapshot["name"])
        again = await done("exec", sandbox=other["id"], command="cat src/hello.sh")
        assert "from $PWD" in again["stdout"], again
        await done("remove_sandbox", sandbox=other["id"])
        await refused("fre agent create", "list_files", sandbox=other["id"])
        await done("remove_sandbox")  # the session's own: the next use makes another
        assert (await done("list_files")).get("entries") is None
    print("ok")


asyncio.run(asyncio.wait_for(main(), 60))
