// The name is in the event, as the caller's JSON has it.
exports.handler = async (event, context) => ({ hello: event.name, function: context.functionName });
