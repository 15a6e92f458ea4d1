exports.handle = async (event, context) => {
  context.logger.info(`called with ${event.path}`);
  return { hello: "world", path: event.path };
};
