'use strict';
const { execFileSync } = require('child_process');
const { Readable } = require('stream');

exports.echo = async (event) => [201, { 'X-Path': event.path, 'x-many': ['a', 'b'] }, event.body];

exports.describe = async (event, context) => ({
  method: event.method,
  path: event.path,
  query: event.query,
  header: event.headers['x-twice'],
  text: event.text,
  function: context.function,
  id: context.id,
  tenant: context.tenant,
  deadline: context.deadline / 1000,
  left: context.remaining() > 0,
});

exports.text = () => 'grüße';
exports.data = async () => new Uint8Array([0, 255]);
exports.nothing = async () => {};
exports.array = async () => [1, 'two', null];
exports.json_in = async (event) => ({ sum: event.json().reduce((a, b) => a + b) });
exports.raises = async () => { throw new RangeError('no such thing'); };
exports.throws_text = () => { throw 'plain text'; };
exports.unserialisable = async () => { const o = {}; o.o = o; return o; };
exports.wrong_type = async () => () => 1;
exports.bad_status = async () => [99, {}, ''];
exports.bad_header = async () => ({ status: 200, headers: { a: 'b\r\nc: d' }, body: '' });
exports.many_headers = async () => [200, Array(300).fill(['a', 'b']), ''];
exports.big_headers = async () => [200, { a: 'b'.repeat(300 << 10) }, ''];
exports.object_form = async () => ({ statusCode: 203, headers: { a: 'b' }, body: { x: 1 } });
exports.stream = async function* stream() { for (let i = 0; i < 5; i++) yield `part ${i}\n`; };
exports.readable = async () => Readable.from([Buffer.from('a'), Buffer.from('b')]);
exports.stream_status = async () => [202, { 'content-type': 'text/x' }, (function* parts() {
  for (let i = 0; i < 30; i++) yield Buffer.alloc(100_000, 'x');
}())];
exports.stream_nothing = async function* nothing() { /* no piece */ };
exports.stream_raises = async function* broken() { yield 'begun'; throw new RangeError('in the middle'); };
exports.stream_raises_first = async function* broken() { throw new RangeError('at first'); };
exports.stream_wrong = async function* wrong() { yield 'begun'; yield 7; };
exports.endless = async function* endless() { for (;;) yield Buffer.alloc(10_000, 'x'); };

exports.logs = async (event, context) => {
  const { logger } = context;
  context.logger = console; // a function may do this
  logger.debug('d');
  logger.info('i %d', 7);
  logger.warning('w');
  logger.error('e');
  return 'ok';
};

exports.prints = async () => {
  console.log('to stdout');
  console.error('to stderr');
  return 'ok';
};

exports.children = async () => execFileSync('/bin/sh', ['-c', 'readlink /proc/self/fd/3 || echo none']);

let waiting = [];
exports.concurrent = async (event) => {
  await new Promise((resolve) => { // returns once eight events run at once
    waiting.push(resolve);
    if (waiting.length === 8) {
      waiting.forEach((f) => f());
      waiting = [];
    }
  });
  return event.body;
};

exports.recursion = function recursion(...a) { return 1 + recursion(...a); };
exports.dies = async () => process.exit(3);
exports.waits = async (event, { logger }) => {
  logger.info('waiting');
  await new Promise(() => {});
};
exports.rejects = async () => {
  Promise.reject(new RangeError('nobody waits'));
  await new Promise(() => {});
};
exports.uncaught = async () => {
  setImmediate(() => { throw new RangeError('nobody catches'); });
  await new Promise(() => {});
};
exports.not_callable = 7;

exports.surroundings = async () => ({
  env: process.env,
  cwd: process.cwd(),
  argv: process.argv.slice(1),
  path: [],
  hour: new Date(0).getHours(),
  child: execFileSync('/usr/bin/env').toString(),
});

// Returns the answer of another function to the body, or the code of the error.
exports.calls = async (event, context) => {
  try {
    const a = await context.call(event.path.slice(1), event.body, { method: 'PUT', path: event.rawQuery || '/p?q=1', headers: { 'x-a': '1' } });
    return [a.status, { 'x-b': a.headers['x-b'] }, a.body];
  } catch (e) {
    return `${e.name} ${e.code ?? e.message}`;
  }
};

exports.acalls = async (event, context) => {
  const answers = await Promise.all([0, 1, 2].map((i) => context.call('f', `${event.text}${i}`)));
  return Buffer.concat(answers.flatMap((a, i) => (i ? [Buffer.from(' '), a.body] : [a.body])));
};

exports.calls_left = async (event, context) => {
  context.call('waits').catch(() => {});
  return 'left';
};
