def handle(event, context):
    context.logger.info("called with %d bytes" % len(event.body or b""))
    return {"hello": "world", "path": event.path}
