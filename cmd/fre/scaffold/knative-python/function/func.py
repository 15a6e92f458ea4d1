import logging


def new():
    return Function()


class Function:
    def __init__(self):
        self.started = False

    async def handle(self, scope, receive, send):
        logging.info("Request Received")
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [[b"content-type", b"text/plain"]]})
        await send({"type": "http.response.body", "body": b"%s %s, started: %r" % (scope["method"].encode(), message["body"], self.started)})

    def start(self, cfg):
        self.started = bool(cfg)

    def stop(self):
        logging.info("Function stopping")

    def alive(self):
        return True, "Alive"

    def ready(self):
        return True, "Ready"
