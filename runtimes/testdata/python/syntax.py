def handle(event, context:
