"""Handlers for AWS Lambda, handler(event, context), without AWS's runtime interface
client."""

import json
import os
import sys
import time

import _fre

http = False  # the event is the whole HTTP request, in payload format 2.0
alone = True  # an instance has one event at a time, so the environment may describe the event
threads = None  # a _thread._local() with the event's id, if logging needs the id


class ClientContext:
    """The fields of X-Amz-Client-Context."""

    __slots__ = ("custom", "env", "client")

    def __init__(self, said):
        self.custom, self.env, self.client = said.get("custom"), said.get("env"), said.get("client")


class Identity:
    __slots__ = ()
    cognito_identity_id = cognito_identity_pool_id = None


class Context:
    """docs.aws.amazon.com/lambda/latest/dg/python-context.html"""

    identity = Identity()
    function_version = "$LATEST"

    def __init__(self, event, context):
        self._context = context
        self.aws_request_id = context.id
        self.function_name = context.function
        self.tenant_id = context.tenant
        self.invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:" + context.function
        qualifier = event.headers.get("x-fre-lambda-qualifier")
        if qualifier:
            self.invoked_function_arn += ":" + qualifier
            self.function_version = event.headers.get("x-fre-lambda-version", "$LATEST")
        if alone and os.environ.get("AWS_LAMBDA_FUNCTION_VERSION") != self.function_version:
            os.environ["AWS_LAMBDA_FUNCTION_VERSION"] = self.function_version
        said = event.headers.get("x-amz-client-context")
        self.client_context = client_context(said) if said else None

    @property
    def memory_limit_in_mb(self):
        return os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")

    @property
    def log_group_name(self):
        return os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME")

    @property
    def log_stream_name(self):
        return os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME")

    def get_remaining_time_in_millis(self):
        return max(0, int((self._context.deadline - time.time()) * 1000))

    def log(self, message):
        sys.stdout.write(str(message))

    # FRE's additions to Lambda's context (docs/calls.md).

    CallError = _fre.CallError

    def call(self, name, body=b"", **options):
        return self._context.call(name, body, **options)

    async def acall(self, name, body=b"", **options):
        return await self._context.acall(name, body, **options)


def client_context(said):
    from base64 import b64decode

    try:
        said = json.loads(b64decode(said))
        return ClientContext(said) if type(said) is dict else None
    except ValueError:
        return None


def wrap(handler):
    global alone, http
    alone = os.environ.get("FRE_CONCURRENCY", "1") == "1"
    http = os.environ.pop("FRE_LAMBDA_EVENT", "") == "http"
    listen_to_logging()

    def handle(event, context):
        if http:
            return answer(handler(http_event(event, context), Context(event, context)))
        try:
            given = json.loads(event.body) if event.body else {}
        except ValueError as e:
            return 400, {"content-type": "text/plain; charset=utf-8"}, "the event is no JSON: %s\n" % e
        return 200, JSON, _fre.encode_json(handler(given, Context(event, context)), default=other)

    def logged(event, context):
        threads.id = context.logger._id
        return handle(event, context)

    return handle if threads is None else logged


JSON = (("content-type", "application/json"),)


def other(value):
    """Converts a Decimal, the type of DynamoDB's numbers, for JSON."""
    if type(value).__name__ == "Decimal":
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


def listen_to_logging():
    """Makes the root logger write to the function's log, as in Lambda, if the handler's
    modules have imported logging and configured no handler."""
    global threads
    logging = sys.modules.get("logging")
    if logging is None or logging.root.handlers:
        return
    from _thread import _local

    threads = _local()

    class Handler(logging.Handler):
        def emit(self, record):
            try:
                id = getattr(threads, "id", 0)
                if not id:  # in a thread that the handler started
                    sys.stderr.write(self.format(record) + "\n")
                    return
                level = "debug" if record.levelno < 20 else "info" if record.levelno < 30 else "warning" if record.levelno < 40 else "error"
                _fre.Logger(id)._log(level, self.format(record), ())
            except Exception:
                self.handleError(record)

    logging.root.addHandler(Handler())


# --- HTTP, payload format 2.0 ------------------------------------------------
# docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html


def http_event(event, context):
    headers, cookies = {}, []
    for name, value in event.headers.pairs:
        name = name.lower()
        if name == "cookie":
            cookies += [c.strip() for c in value.split(";")]
        else:
            headers[name] = headers[name] + "," + value if name in headers else value
    host = headers.get("host", "")
    now = time.time()
    out = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": event.path,
        "rawQueryString": event.raw_query,
        "headers": headers,
        "isBase64Encoded": False,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": context.function,
            "domainName": host,
            "domainPrefix": host.partition(".")[0],
            "http": {
                "method": event.method,
                "path": event.path,
                "protocol": "HTTP/1.1",
                "sourceIp": client_address(headers.get("x-forwarded-for", "")),
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": context.id,
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(now * 1000),
        },
    }
    if cookies:
        out["cookies"] = cookies
    if event.query:
        out["queryStringParameters"] = {name: ",".join(values) for name, values in event.query.items()}
    if event.body:
        out["body"], out["isBase64Encoded"] = body_of(event.body, headers.get("content-type", ""))
    return out


def client_address(forwarded):
    """Returns the last address of X-Forwarded-For, the gateway's own client, or ""."""
    last = forwarded.rpartition(",")[2].strip()
    return last if last and all(c in "0123456789abcdefABCDEF.:" for c in last) else ""


TEXTS = ("", "application/json", "application/xml", "application/javascript")


def body_of(body, kind):
    kind = kind.partition(";")[0].strip().lower()
    if kind in TEXTS or kind.startswith("text/") or kind.endswith(("+json", "+xml")):
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            pass
    from base64 import b64encode

    return b64encode(body).decode(), True


def answer(result):
    if type(result) is not dict or result.get("statusCode") is None:
        return 200, JSON, _fre.encode_text(result) if type(result) is str else _fre.encode_json(result, default=other)
    headers = []
    many = result.get("multiValueHeaders") or {}
    for name, value in (result.get("headers") or {}).items():
        if name not in many:
            headers.append((name.lower(), value if type(value) is str else json.dumps(value)))
    headers += [(name.lower(), value) for name, values in many.items() for value in values]
    headers += [("set-cookie", c) for c in result.get("cookies") or ()]
    body = result.get("body")
    if body is None:
        body = ""
    if result.get("isBase64Encoded"):
        body = decode_base64(body)
    elif type(body) is not str:
        body = _fre.encode_json(body, default=other)
    else:
        body = _fre.encode_text(body)
    headers = [h for h in headers if h[0] not in OWN]
    if not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", "text/plain; charset=utf-8"))
    status = result["statusCode"]
    return int(status) if type(status) is str and status.isdecimal() else status, headers, body


def decode_base64(text):
    from base64 import b64decode

    try:
        if isinstance(text, str):
            text = text.encode("ascii")
        return b64decode(text.translate(None, b"\r\n"), validate=True)
    except (AttributeError, ValueError) as e:
        raise ValueError("isBase64Encoded is true, but the answer's body is no base64: %s" % e) from None


# Only the gateway sets headers about the connection.
OWN = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect", "x-fre-id")
)
