'use strict';

exports.handle = async (event, context) => {
  const name = event.body.toString() || 'world';
  context.logger.info(`greeting ${name}`);
  return { hello: name, function: context.function };
};
