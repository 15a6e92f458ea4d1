"""Calls other functions: the path says which, /NAME/path, as the client escaped it."""

from urllib.parse import unquote


def handle(event, context):
    if event.path == "/end":
        return event.headers.get("x-request-id", "") + " " + event.body.decode()
    if event.path == "/large":
        return b"z" * int(event.raw_query)
    name, _, path = event.path[1:].partition("/")
    try:
        a = context.call(unquote(name), event.body, path="/" + path, method=event.method)
    except Exception as e:
        return 502, {}, "%s %s" % (type(e).__name__, e)
    return a.status, {"x-via": context.function}, a.body


async def handle_async(event, context):
    if event.path == "/end":
        return event.body
    name, _, path = event.path[1:].partition("/")
    a = await context.acall(name, event.body, path="/" + path, method=event.method)
    return a.status, {"x-via": context.function}, a.body
