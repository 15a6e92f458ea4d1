"""WSGI applications (PEP 3333)."""

import os
import sys
from io import BytesIO

from _fre.awslambda import OWN, client_address


def unquote(path):
    """Returns the bytes of an escaped path as a str, one character per byte (latin-1)."""
    first, *rest = path.encode("utf-8", "surrogateescape").split(b"%")
    out = [first]
    for part in rest:
        try:
            out.append(bytes.fromhex(part[:2].decode("ascii")) + part[2:] if len(part) > 1 else b"%" + part)
        except ValueError:
            out.append(b"%" + part)
    return b"".join(out).decode("latin-1")


def wrap(app):
    threaded = os.environ.get("FRE_CONCURRENCY", "1") != "1"

    def handle(event, context):
        answer = length = None
        written = []  # pieces written by the callable that start_response returns

        def start_response(status, headers, exc_info=None):
            nonlocal answer, length
            if answer and exc_info is None:
                raise AssertionError("the application called start_response twice")
            length = next((v for n, v in headers if n.lower() == "content-length"), None)
            answer = int(status[:3]), [h for h in headers if h[0].lower() not in OWN]
            return written.append

        result = app(environment(event, context, threaded), start_response)
        pieces = iter(result)
        try:
            first = next(pieces, b"")
            while not answer:  # the latest time for start_response is the first non-empty piece
                if first:
                    break
                first = next(pieces)
        except StopIteration:
            pass
        except BaseException:
            close(result)
            raise
        if not answer:
            close(result)
            raise RuntimeError("the application did not call start_response")
        first = b"".join((*written, first))
        if isinstance(result, (list, tuple)) and len(result) <= 1 or length is not None and length == str(len(first)):
            close(result)
            return *answer, first
        return *answer, stream(result, pieces, first)

    return handle


def stream(result, pieces, first):
    try:
        yield first
        yield from pieces
    finally:
        close(result)


def close(result):
    if hasattr(result, "close"):
        result.close()


def environment(event, context, threaded):
    headers = event.headers
    host = headers.get("host") or "localhost"
    scheme = "https" if headers.get("x-forwarded-proto") == "https" else "http"
    name, _, port = host.partition(":") if host[:1] != "[" else (host, "", "")
    mount = headers.get("x-forwarded-prefix", "")
    target = mount + event.path + ("?" + event.raw_query if event.raw_query else "")
    environ = {
        "REQUEST_METHOD": event.method,
        "SCRIPT_NAME": unquote(mount),
        "PATH_INFO": unquote(event.path),
        "QUERY_STRING": event.raw_query,
        "RAW_URI": target,
        "REQUEST_URI": target,
        "SERVER_NAME": name,
        "SERVER_PORT": port or ("443" if scheme == "https" else "80"),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": client_address(headers.get("x-forwarded-for", "")),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": BytesIO(event.body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": threaded,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "fre.context": context,
    }
    for name, value in headers.items():
        # X_Forwarded_For would pass for X-Forwarded-For.
        if not (name.isascii() and name.replace("-", "").isalnum()):
            continue
        name = name.upper().replace("-", "_")
        if name != "CONTENT_TYPE" and name != "PROXY":
            name = "HTTP_" + name
        if name not in ("HTTP_CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING", "PROXY"):
            environ[name] = value
    if event.body:
        environ["CONTENT_LENGTH"] = str(len(event.body))
    return environ
