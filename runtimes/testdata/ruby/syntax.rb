def handle(event, context
