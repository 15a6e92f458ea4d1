// Handlers of AWS Lambda's: (event, context), (event, context, callback) and
// streamifyResponse, without its runtime interface client.
'use strict';

const { PassThrough } = require('stream');

const JSON_TYPE = [['content-type', 'application/json']];
const STREAMS = Symbol('streams');

// What Lambda's runtime has in its global scope.
const awslambda = {
  streamifyResponse(handler) {
    handler[STREAMS] = true;
    return handler;
  },
  HttpResponseStream: {
    // Has stream's answer begin with a status and headers.
    from(stream, head) {
      stream.head = head;
      return stream;
    },
  },
};

const LATEST = '$LATEST';

// Whether an instance has one event at a time, so that the environment may be about that.
let alone;

// What of the environment a context says; reading that is slow.
let version, memory, group, streamName;

// docs.aws.amazon.com/lambda/latest/dg/nodejs-context.html
class Context {
  #callback;
  #asked = false;
  #own;
  constructor(event, context) {
    this.callbackWaitsForEmptyEventLoop = true;
    this.functionName = context.function;
    this.functionVersion = LATEST;
    this.invokedFunctionArn = `arn:aws:lambda:us-east-1:000000000000:function:${context.function}`;
    const qualifier = event.headers['x-fre-lambda-qualifier'];
    if (qualifier) {
      this.invokedFunctionArn += `:${qualifier}`;
      this.functionVersion = event.headers['x-fre-lambda-version'];
    }
    if (alone && version !== this.functionVersion) {
      version = this.functionVersion;
      process.env.AWS_LAMBDA_FUNCTION_VERSION = version;
    }
    this.memoryLimitInMB = memory;
    this.awsRequestId = context.id;
    this.logGroupName = group;
    this.logStreamName = streamName;
    this.tenantId = context.tenant;
    this.getRemainingTimeInMillis = () => Math.max(0, context.remaining());
    this.#own = context;
    const said = event.headers['x-amz-client-context'];
    this.clientContext = said ? clientContext(said) : undefined;
  }
  get done() { this.#asked = true; return this.#callback; }
  get fail() { const { done } = this; return (error) => done(error ?? new Error('the handler failed')); }
  get succeed() { const { done } = this; return (result) => done(null, result); }
  // Not of Lambda's: FRE's own (docs/calls.md).
  call(name, body, options) { return this.#own.call(name, body, options); }
  // Whether the handler has asked for a way to answer later.
  static asked(context) { return context.#asked; }
  static answerBy(context, callback) { context.#callback = callback; }
}

function clientContext(said) {
  try {
    return JSON.parse(Buffer.from(said, 'base64').toString());
  } catch {
    return undefined;
  }
}

// Returns the handler as FRE's own are. quiet(f) calls f once nothing runs any more.
function wrap(handler, quiet) {
  const whole = process.env.FRE_LAMBDA_EVENT === 'http';
  delete process.env.FRE_LAMBDA_EVENT;
  ({ AWS_LAMBDA_FUNCTION_VERSION: version, AWS_LAMBDA_FUNCTION_MEMORY_SIZE: memory, AWS_LAMBDA_LOG_GROUP_NAME: group, AWS_LAMBDA_LOG_STREAM_NAME: streamName } = process.env);
  alone = (process.env.FRE_CONCURRENCY || '1') === '1';
  const answer = whole ? httpAnswer : (result) => [200, JSON_TYPE, encode(result)];
  return async (event, context) => {
    let given;
    if (whole) {
      given = httpEvent(event, context);
    } else {
      try {
        given = event.body.length ? event.json() : {};
      } catch (e) {
        return [400, [], `the event is no JSON: ${e.message}\n`];
      }
    }
    const of = new Context(event, context);
    return handler[STREAMS] ? stream(handler, given, of, quiet) : answer(await call(handler, given, of));
  };
}

// Calls a handler, which says by a promise, a callback or the context what it returns.
function call(handler, given, context) {
  let settle;
  let waits;
  const callback = (error, result) => {
    waits ??= new Promise((resolve, reject) => { settle = [resolve, reject]; });
    if (error !== undefined && error !== null) settle[1](error);
    else settle[0](result);
  };
  Context.answerBy(context, callback);
  const result = handler(given, context, callback);
  if (typeof result?.then === 'function') return result;
  if (handler.length > 2 || Context.asked(context)) {
    waits ??= new Promise((resolve, reject) => { settle = [resolve, reject]; });
    return waits;
  }
  return waits ?? null; // nobody else will answer: what it returned at once does not count
}

function encode(result) {
  let text;
  try {
    text = JSON.stringify(result === undefined ? null : result);
  } catch (e) {
    throw new TypeError(`the handler's answer is no JSON: ${e.message}`);
  }
  return Buffer.from(text === undefined ? 'null' : text);
}

// Calls a handler that writes its answer to a stream. Status and headers are known
// once it writes. A stream that ends otherwise fails the event: nobody writes to it
// any more.
async function stream(handler, given, context, quiet) {
  const out = new PassThrough();
  let type = 'application/octet-stream';
  out.setContentType = (t) => { type = t; };
  const failed = new Promise((_, reject) => {
    // The error of a stream that was destroyed without one, and of who reads it then.
    out.on('error', reject);
    out.on('close', () => reject(out.errored ?? new Error('the handler destroyed the stream before its end')));
    Promise.resolve().then(() => handler(given, out, context)).then(() => {
      // Something that the handler has begun may still write.
      if (!out.writableEnded && !out.destroyed) quiet(() => out.end());
    }, (e) => {
      reject(e);
      out.destroy(e instanceof Error ? e : new Error(String(e)));
    });
  });
  failed.catch(() => {}); // after the head it is the stream that tells of it
  await Promise.race([new Promise((resolve) => { out.once('readable', resolve); }), failed]);
  const head = out.head ? httpHead(out.head) : { status: 200, headers: [['content-type', type]] };
  return { ...head, body: out };
}

// --- HTTP, payload format 2.0 ------------------------------------------------
// docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html

function httpEvent(event, context) {
  const headers = {};
  const cookies = [];
  for (const [n, value] of event.rawHeaders) {
    const name = n.toLowerCase();
    if (name === 'cookie') cookies.push(...value.split(';').map((c) => c.trim()));
    else headers[name] = name in headers ? `${headers[name]},${value}` : value;
  }
  const host = headers.host || '';
  const now = new Date();
  const text = now.toUTCString(); // Tue, 24 Nov 2026 18:00:00 GMT
  const given = {
    version: '2.0', routeKey: '$default', rawPath: event.path, rawQueryString: event.rawQuery, headers,
    isBase64Encoded: false,
    requestContext: {
      accountId: 'anonymous', apiId: context.function, domainName: host, domainPrefix: host.split('.')[0],
      http: {
        method: event.method, path: event.path, protocol: 'HTTP/1.1', sourceIp: clientAddress(headers['x-forwarded-for'] || ''), userAgent: headers['user-agent'] || '',
      },
      requestId: context.id, routeKey: '$default', stage: '$default',
      time: `${text.slice(5, 7)}/${text.slice(8, 11)}/${text.slice(12, 16)}:${text.slice(17, 25)} +0000`, timeEpoch: now.getTime(),
    },
  };
  if (cookies.length) given.cookies = cookies;
  const query = Object.entries(event.query);
  if (query.length) given.queryStringParameters = Object.fromEntries(query.map(([name, values]) => [name, values.join(',')]));
  if (event.body.length) {
    given.isBase64Encoded = !isText(headers['content-type'] || '', event.body);
    given.body = event.body.toString(given.isBase64Encoded ? 'base64' : 'utf8');
  }
  return given;
}

// The last of X-Forwarded-For, the gateway's own client.
function clientAddress(forwarded) {
  const last = forwarded.slice(forwarded.lastIndexOf(',') + 1).trim();
  return /^[0-9a-fA-F.:]+$/.test(last) ? last : '';
}

function isText(contentType, body) {
  const kind = contentType.split(';')[0].trim().toLowerCase();
  return /^$|^text\/|\+json$|\+xml$|^application\/(json|xml|javascript)$/.test(kind) && require('buffer').isUtf8(body);
}

// Headers about the connection are the gateway's to say.
const OWN = ['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection', 'te', 'trailer',
  'transfer-encoding', 'upgrade', 'content-length', 'expect', 'x-fre-id'];

function httpAnswer(result) {
  if (result === null || typeof result !== 'object' || result.statusCode === undefined || result.statusCode === null) {
    return [200, JSON_TYPE, typeof result === 'string' ? Buffer.from(result) : encode(result)];
  }
  const { status, headers } = httpHead(result);
  let { body } = result;
  if (body === undefined || body === null) body = '';
  if (result.isBase64Encoded) body = decodeBase64(body);
  else body = typeof body === 'string' ? Buffer.from(body) : encode(body);
  return [status, headers, body];
}

// Buffer.from would pass over what is none.
function decodeBase64(text) {
  const plain = typeof text === 'string' ? text.replace(/[\r\n]/g, '') : null;
  if (plain === null || plain.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(plain)) {
    throw new TypeError("isBase64Encoded is true, but the answer's body is no base64");
  }
  return Buffer.from(plain, 'base64');
}

function httpHead(result) {
  const many = result.multiValueHeaders || {};
  const headers = [];
  for (const [name, value] of Object.entries(result.headers || {})) if (!(name in many)) headers.push([name.toLowerCase(), String(value)]);
  for (const [name, values] of Object.entries(many)) for (const value of values) headers.push([name.toLowerCase(), String(value)]);
  for (const c of result.cookies || []) headers.push(['set-cookie', c]);
  const kept = headers.filter(([name]) => !OWN.includes(name));
  if (!kept.some(([name]) => name === 'content-type')) kept.push(['content-type', 'text/plain; charset=utf-8']);
  return { status: result.statusCode === undefined ? 200 : Number(result.statusCode), headers: kept };
}

module.exports = { awslambda, wrap };
