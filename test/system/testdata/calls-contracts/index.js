'use strict';

// Calls other functions by a handler of Lambda's, with event: http: the path says which, /NAME/path.
exports.handler = async (event, context) => {
  const [, name, ...rest] = event.rawPath.split('/');
  const a = await context.call(name, event.body, { path: `/${rest.join('/')}` });
  return { statusCode: a.status, headers: { 'x-via': context.functionName }, body: a.text };
};
