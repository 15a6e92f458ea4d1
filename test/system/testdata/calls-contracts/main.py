"""Calls other functions by handlers of contracts: the path says which, /NAME/path."""


def split(path):
    name, _, rest = path[1:].partition("/")
    return name, "/" + rest


def handler(event, context):  # lambda, with event: http
    name, path = split(event["rawPath"])
    a = context.call(name, event["body"], path=path)
    return {"statusCode": a.status, "headers": {"x-via": context.function_name}, "body": a.text}


def wsgi(environ, start_response):
    context = environ["fre.context"]
    name, path = split(environ["PATH_INFO"])
    a = context.call(name, environ["wsgi.input"].read(), path=path)
    start_response("%d Other" % a.status, [("x-via", context.function)])
    return [a.body]


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    context = scope["fre"]["context"]
    name, path = split(scope["path"].removeprefix(scope["root_path"]))  # which path begins with
    a = await context.acall(name, (await receive())["body"], path=path)
    await send({"type": "http.response.start", "status": a.status, "headers": [(b"x-via", context.function.encode())]})
    await send({"type": "http.response.body", "body": a.body})
