def handle(event, context)
  name = event.text.empty? ? "world" : event.text
  context.logger.info("greeting %s", name)
  { hello: name, function: context.function }
end
