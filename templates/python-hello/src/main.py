def handle(event, context):
    name = event.body.decode() or "world"
    context.logger.info("greeting %s", name)
    return {"hello": name, "function": context.function}
