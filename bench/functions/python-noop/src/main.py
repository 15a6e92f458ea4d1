def handle(event, context):
    return b""
