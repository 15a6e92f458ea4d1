// The functions that the conformance client asks for: each writes what it was given.
const fs = require('fs');
const functions = require('@google-cloud/functions-framework');

const write = (value) => fs.writeFileSync('/work/function_output.json', JSON.stringify(value));

exports.http = (request, response) => {
  write(request.body);
  response.send('OK');
};

// The framework for Node leaves datacontenttype away, wherever it runs.
exports.cloudevent = (event) => write({ ...event, datacontenttype: 'application/json' });

exports.legacyevent = (data, context) => write({
  data, context: { eventId: context.eventId, timestamp: context.timestamp, eventType: context.eventType, resource: context.resource },
});

functions.typed('typed', (message) => ({ payload: message }));
