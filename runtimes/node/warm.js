// The function that a parked bootstrap runs, so that what functions run
// through is compiled when theirs comes.
'use strict';

exports.handle = async (event, context) => ({
  status: 200,
  headers: event.headers,
  body: { query: event.query, text: event.text, json: event.json(), id: context.id, left: context.remaining() },
});
