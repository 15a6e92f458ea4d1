def handle(event, context)
  context.logger.info("called with %d bytes", event.body.bytesize)
  { hello: "world", path: event.path }
end
