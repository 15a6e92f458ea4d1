# The same as bench/functions/data-python, on a Unix socket.
import http.server
import os
import socketserver
import sys
import threading

BODIES = {}


def body(length):
    if length not in BODIES:
        BODIES[length] = bytes(length)
    return BODIES[length]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 << 10

    def do_GET(self):
        length = int(self.path.strip("/"))
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body(length))

    def address_string(self):
        return "unix"

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(sys.argv[1], Handler)
print(sys.argv[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read(1)
os._exit(0)
