PIECE = 64 << 10
BODIES = {}


def body(length):
    if length not in BODIES:
        BODIES[length] = bytes(length)
    return BODIES[length]


def pieces(length):
    while length > 0:
        yield body(min(length, PIECE))
        length -= PIECE


def handle(event, context):
    path = event.path.strip("/").split("/")
    if path[0] == "stream":
        return pieces(int(path[1]))
    return body(int(path[0]))
