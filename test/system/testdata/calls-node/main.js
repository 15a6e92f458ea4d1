'use strict';

// Calls other functions: the path says which, /NAME/path.
exports.handle = async (event, context) => {
  if (event.path === '/end') return event.body;
  const [, name, ...rest] = event.path.split('/');
  const a = await context.call(name, event.body, { path: `/${rest.join('/')}`, method: event.method });
  return [a.status, { 'x-via': context.function }, a.body];
};
