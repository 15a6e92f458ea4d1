// FRE's Node bootstrap: loads the handler and speaks the channel protocol
// (docs/protocol.md) on file descriptor 3.
//
//	node bootstrap.js file.export
//	node bootstrap.js               parks: the engine names the function later
//
// It is one file because each is found, read and compiled at every start.
'use strict';

const fs = require('fs');
const net = require('net');
const path = require('path');
const { pathToFileURL } = require('url');
const { inspect, format } = require('util');
const v8 = require('v8');
const vm = require('vm');

require('./limits.js');

const READY = 1, FAILED = 2, INVOKE = 3, RESPONSE = 4, DATA = 5, ERROR = 6, CANCEL = 7, WINDOW = 8, LOG = 9, STOP = 10, PARKED = 11, LOAD = 12;
const MORE = 1;
const MAX_PAYLOAD = 1 << 20;
const MAX_META = 256 << 10;
const MAX_HEADERS = 256;
const FULL_WINDOW = 256 << 10;
const GRANT = 128 << 10; // bytes of a request body taken before the window is opened again
const FIRST = 256 << 10; // bytes of an answer that go along in RESPONSE
const CALL = 0x30;
const FIRST_CALL = 2 ** 48; // the number of the first call that a function makes: those below are events'
const NAMED = 0x21; // FILE: the answer is in a file whose name follows
const SMALL = 4 << 10; // bytes of a frame that is cheaper to copy than to write in parts
const EXIT_PROTOCOL = 70; // EX_SOFTWARE of sysexits.h
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const CONTROL = /[\0-\x08\x0a-\x1f\x7f]/;


// --- What a handler sees ----------------------------------------------------

// One request. body: Buffer; method, path, rawQuery: string; rawHeaders:
// [name, value] pairs as they came; headers: the same by lower-case name, values
// of a name that came more than once joined with ", "; query: parameter name ->
// array of values; text: the body as UTF-8; json().
class Event {
  #query;
  constructor(meta, body) {
    this.method = meta.method || '';
    this.path = meta.path || '';
    this.rawQuery = meta.query || '';
    this.rawHeaders = meta.headers || [];
    this.headers = byName(this.rawHeaders);
    this.body = body;
  }
  get query() {
    if (!this.#query) {
      this.#query = Object.create(null);
      for (const [k, v] of new URLSearchParams(this.rawQuery)) (this.#query[k] ||= []).push(v);
    }
    return this.#query;
  }
  get text() { return this.body.toString(); }
  json() { return JSON.parse(this.body.toString()); }
}

// What the engine says about one event. deadline: milliseconds since 1970. What few
// handlers ask for is made for those: it costs more than all the rest of an event.
class Context {
  #call;
  #logger;
  constructor(call) {
    this.#call = call;
    this.function = call.meta.function;
    this.id = call.meta.id;
    this.tenant = call.meta.tenant;
    this.deadline = call.meta.deadline_ms;
  }
  // AbortSignal, aborted when the client has gone.
  get signal() { return this.#call.signal; }
  get logger() {
    if (!this.#logger) {
      const { id } = this.#call;
      const log = (level) => (message, ...args) => {
        send(LOG, 0, id, json({ level, message: cut(format(message, ...args), MAX_META) }));
      };
      this.#logger = { debug: log('debug'), info: log('info'), warning: log('warning'), warn: log('warning'), error: log('error') };
    }
    return this.#logger;
  }
  set logger(logger) { this.#logger = logger; }
  remaining() { return this.deadline - Date.now(); }

  // Has another function of the tenant, NAME or NAME@REVISION, handle an event. Gives its
  // answer: status, headers, rawHeaders, body (Buffer), text, json(). Throws a CallError,
  // whose code says why there is none. body: string, Buffer or object.
  call(name, body, options) {
    const answer = callOther(this.#call, name, body, options);
    answer.catch(() => {}); // one that nobody waits for ends with its event, and is nobody's error
    return answer;
  }
}

// Why a call of another function has no answer: code is a word for programs (docs/calls.md).
class CallError extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.name = 'CallError';
    this.code = code;
  }
}

// What a called function has answered.
class CallAnswer {
  constructor(meta, body) {
    this.status = meta.status;
    this.rawHeaders = meta.headers || [];
    this.headers = byName(this.rawHeaders);
    this.body = body;
  }
  get text() { return this.body.toString(); }
  json() { return JSON.parse(this.body.toString()); }
}

// Values by lower-case name, of a name that came more than once joined with ", ".
function byName(pairs) {
  const headers = Object.create(null);
  for (const [name, value] of pairs) {
    const n = name.toLowerCase();
    headers[n] = n in headers ? `${headers[n]}, ${value}` : value;
  }
  return headers;
}

// --- The channel ------------------------------------------------------------

// Children do not get the descriptor: node marks what it inherits close-on-exec.
let channelFD = Number(process.env.FRE_CHANNEL || 3);
let channel = new net.Socket({ fd: channelFD, readable: true, writable: true });
channel.on('error', () => process.exit(0)); // the engine has gone
channel.on('end', () => process.exit(0));

function die(why) {
  process.stderr.write(`fre: the engine broke the channel protocol: ${why}\n`);
  process.exit(EXIT_PROTOCOL);
}

const json = (v) => Buffer.from(JSON.stringify(v));

// Ids are whole numbers below 2**53: the engine counts from 1.
const readID = (b, at) => b.readUInt32LE(at) + b.readUInt32LE(at + 4) * 0x100000000;

function putHead(b, length, kind, flags, id) {
  b.writeUInt32LE(length, 0);
  b[4] = kind;
  b[5] = flags;
  b[6] = b[7] = 0;
  b.writeUInt32LE(id >>> 0, 8);
  b.writeUInt32LE(Math.floor(id / 0x100000000), 12);
}

function send(kind, flags, id, ...parts) {
  let size = 0;
  for (const p of parts) size += p.length;
  if (size <= SMALL) {
    const b = Buffer.allocUnsafe(16 + size);
    putHead(b, size, kind, flags, id);
    let at = 16;
    for (const p of parts) at += p.copy(b, at);
    write(b);
    return;
  }
  const head = Buffer.allocUnsafe(16);
  putHead(head, size, kind, flags, id);
  channel.cork();
  channel.write(head);
  for (const p of parts) channel.write(p);
  channel.uncork();
}

// Writes a small frame: at once, as far as the socket takes it and nothing waits before it.
function write(b) {
  let n = 0;
  if (channelFD >= 0 && channel.writableLength === 0) {
    try {
      n = fs.writeSync(channelFD, b);
    } catch (e) {
      if (e.code !== 'EAGAIN') process.exit(0); // the engine has gone
    }
  }
  if (n < b.length) channel.write(n ? b.subarray(n) : b);
}

// Shortens text so that its JSON stays below limit bytes.
function cut(text, limit) {
  let n = text.length;
  while (n * 6 > limit - 64 && Buffer.byteLength(JSON.stringify(text.slice(0, n))) > limit - 64) n >>= 1;
  return n < text.length ? text.slice(0, n) + '...' : text;
}

const FROM_ENGINE = [INVOKE, DATA, CANCEL, WINDOW, STOP];

// Frames are cut out of what has arrived: pieces holds size bytes.
let pieces = [], size = 0, need = 16, head = null;

channel.on('data', arrived);

function arrived(piece) {
  pieces.push(piece);
  size += piece.length;
  while (size >= need) {
    let all = pieces.length === 1 ? pieces[0] : Buffer.concat(pieces, size);
    const got = all.subarray(0, need);
    all = all.subarray(need);
    pieces = all.length ? [all] : [];
    size = all.length;
    if (head) {
      const h = head;
      head = null;
      need = 16;
      frame(h, got);
      continue;
    }
    const h = { kind: got[4], flags: got[5], id: readID(got, 8) };
    const length = got.readUInt32LE(0);
    if (length > MAX_PAYLOAD) die(`frame of ${length} bytes`);
    const answers = h.id >= FIRST_CALL && (h.kind === RESPONSE || h.kind === ERROR);
    if (!FROM_ENGINE.includes(h.kind) && !(parked && h.kind === LOAD) && !answers) die(`frame kind ${h.kind}`);
    if (parked && h.kind !== LOAD) die('no LOAD');
    if (got[6] || got[7] || h.flags & ~MORE || (h.flags && h.kind !== INVOKE && h.kind !== DATA && h.kind !== RESPONSE)) {
      die(`flags or file descriptors of frame kind ${h.kind}`);
    }
    if (length === 0) {
      frame(h, Buffer.alloc(0));
    } else {
      head = h;
      need = length;
    }
  }
}

const calls = new Map(); // id -> Call, from INVOKE to the last frame of the answer
let stopping = false;

class Call {
  #abort = null; // AbortController, once somebody has asked for its signal
  #cancelled = false;
  constructor(id, meta, body) {
    this.id = id;
    this.meta = meta;
    this.parts = [body];
    this.taken = 0; // bytes of DATA since the last grant
    this.window = FULL_WINDOW; // bytes of the answer that may be sent
    this.wake = null; // resolves the promise of who waits for the window
    this.over = false; // nothing more may be sent
  }
  get signal() {
    if (!this.#abort) {
      this.#abort = new AbortController();
      if (this.#cancelled) this.#abort.abort();
    }
    return this.#abort.signal;
  }
  cancel() {
    this.#cancelled = true;
    this.#abort?.abort();
  }
}

let parked = false; // waiting for LOAD

function frame({ kind, flags, id }, payload) {
  if (id >= FIRST_CALL) {
    frameSent(kind, flags, id, payload);
    return;
  }
  if (kind === LOAD) {
    become(id, payload);
    return;
  }
  if (kind === INVOKE) {
    const n = payload.length < 4 ? Infinity : payload.readUInt32LE(0);
    if (n > payload.length - 4 || n > MAX_META || id === 0 || calls.has(id)) die('INVOKE');
    const meta = decode(payload.toString('utf8', 4, 4 + n));
    const call = new Call(id, meta, payload.subarray(4 + n));
    calls.set(id, call);
    if (!flags) handle(call);
    return;
  }
  if (kind === STOP) {
    stopping = true;
    stopIfIdle();
    return;
  }
  const call = calls.get(id);
  if (!call) return; // crossed the end of its answer
  if (kind === DATA) {
    call.parts.push(payload);
    call.taken += payload.length;
    if (!flags) {
      handle(call);
    } else if (call.taken >= GRANT) {
      const b = Buffer.alloc(4);
      b.writeUInt32LE(call.taken);
      send(WINDOW, 0, id, b);
      call.taken = 0;
    }
  } else if (kind === CANCEL) {
    call.cancel();
    fail(call, 'Cancelled', 'the client has gone', '');
  } else {
    if (payload.length !== 4) die('WINDOW');
    call.window += payload.readUInt32LE(0);
    call.wake?.();
  }
}

// The object that JSON from the engine holds.
function decode(text) {
  let o;
  try {
    o = JSON.parse(text);
  } catch {
    die('metadata');
  }
  if (o === null || typeof o !== 'object' || Array.isArray(o)) die('metadata');
  return o;
}

function stopIfIdle() {
  if (!stopping || calls.size) return;
  // What was written must reach the engine before the process ends.
  channel.end(() => process.exit());
}

function end(call) {
  call.over = true;
  calls.delete(call.id);
  call.wake?.();
  for (const sent of sents.values()) {
    if (sent.event === call) giveUp(sent, new CallError('cancelled', 'the calling event is over'));
  }
  stopIfIdle();
}

function fail(call, type, message, stack) {
  if (call.over) return;
  send(ERROR, 0, call.id, failure(type, message, stack));
  end(call);
}

function failure(type, message, stack) {
  return json({ type: cut(type, 1024), message: cut(message, 64 << 10), stack: cut(stack, 128 << 10) });
}

// Takes apart whatever was thrown: type, message, and the stack without the
// bootstrap's and node's own frames.
function describe(e) {
  let type = 'Error', message = '', stack = '';
  try {
    if (e instanceof Error) {
      type = String(e.name || e.constructor.name);
      message = String(e.message);
      stack = String(e.stack);
    } else {
      type = 'Thrown';
      message = typeof e === 'string' ? e : inspect(e);
    }
    stack = stack.split('\n').filter((l) => !(/^\s+at /.test(l) && (l.includes(__filename) || l.includes('node:internal')))).join('\n');
    process.stderr.write(`${stack || `${type}: ${message}`}\n`);
  } catch { /* a getter of what was thrown threw */ }
  return [type, message, stack];
}

// Waits until something may be sent. False: nobody wants it any more.
async function window(call) {
  while (!call.over && call.window <= 0) await new Promise((resolve) => { call.wake = resolve; });
  call.wake = null;
  listenForQuiet();
  if (!call.over && channel.writableNeedDrain) {
    await new Promise((resolve) => channel.once('drain', resolve));
  }
  return !call.over;
}

async function sendData(call, data) {
  for (let at = 0; at < data.length;) {
    if (!await window(call)) return false;
    const n = Math.min(call.window, data.length - at);
    call.window -= n;
    send(DATA, MORE, call.id, data.subarray(at, at + n));
    at += n;
  }
  return true;
}

// --- Calls of other functions -------------------------------------------------

const sents = new Map(); // number -> Sent, from CALL to the last frame of the answer
let lastSent = FIRST_CALL - 1;

class Sent {
  constructor(id, event, resolve, reject) {
    this.id = id;
    this.event = event; // the Call that it belongs to
    this.resolve = resolve;
    this.reject = reject;
    this.meta = null;
    this.parts = [];
    this.taken = 0; // bytes of DATA since the last grant
    this.window = FULL_WINDOW; // bytes of the body that may be sent
    this.wake = null; // as Call's
    this.over = false;
  }
}

function frameSent(kind, flags, id, payload) {
  const sent = sents.get(id);
  if (!sent) return; // given up
  if (kind === RESPONSE) {
    const n = payload.length < 4 ? Infinity : payload.readUInt32LE(0);
    if (n > payload.length - 4) die('RESPONSE');
    sent.meta = decode(payload.toString('utf8', 4, 4 + n));
    sent.parts.push(payload.subarray(4 + n));
  } else if (kind === DATA) {
    sent.parts.push(payload);
    sent.taken += payload.length;
    if (flags && sent.taken >= GRANT) {
      const b = Buffer.alloc(4);
      b.writeUInt32LE(sent.taken);
      send(WINDOW, 0, id, b);
      sent.taken = 0;
    }
  } else if (kind === ERROR) {
    const { type, message } = decode(payload.toString());
    close(sent);
    sent.reject(new CallError(type, message));
    return;
  } else if (kind === WINDOW && payload.length === 4) {
    sent.window += payload.readUInt32LE(0);
    sent.wake?.();
    return;
  } else {
    die(`frame kind ${kind} about a call`);
  }
  if (flags) return;
  close(sent);
  sent.resolve(new CallAnswer(sent.meta, Buffer.concat(sent.parts)));
}

function close(sent) {
  sent.over = true;
  sents.delete(sent.id);
  sent.wake?.();
  listenForQuiet();
}

function giveUp(sent, error) {
  close(sent);
  send(CANCEL, 0, sent.id);
  sent.reject(error);
}

async function callOther(event, name, body, { method = 'POST', path: target = '/', headers } = {}) {
  if (!process.env.FRE_CALLS) throw new CallError('not_possible', 'the engine does not allow calls');
  if (event.over) throw new CallError('cancelled', 'the calling event is over');
  const [data, type] = encodeBody(body);
  const pairs = encodeHeaders(headers);
  if (data.length && !pairs.some(([n]) => n.toLowerCase() === 'content-type')) pairs.push(['content-type', type]);
  const mark = target.indexOf('?');
  const [where, query] = mark < 0 ? [target, ''] : [target.slice(0, mark), target.slice(mark + 1)];
  if (!TOKEN.test(method) || !where.startsWith('/') || /[\0- \x7f]/.test(target)) {
    throw new TypeError(`method ${inspect(method)} or path ${inspect(target)} cannot stand in a request`);
  }
  const meta = json({ of: event.id, function: String(name), method, path: where, query, headers: pairs });
  if (meta.length > MAX_META) throw new RangeError(`${meta.length} bytes of headers, at most ${MAX_META}`);
  const n = Buffer.alloc(4);
  n.writeUInt32LE(meta.length);
  let sent;
  const answer = new Promise((resolve, reject) => { sent = new Sent(++lastSent, event, resolve, reject); });
  sents.set(sent.id, sent);
  const more = data.length > FIRST;
  send(CALL, more ? MORE : 0, sent.id, n, meta, data.subarray(0, FIRST));
  if (more) sendData(sent, data.subarray(FIRST)).then((wanted) => { if (wanted) send(DATA, 0, sent.id); });
  return answer;
}

// --- Quiet --------------------------------------------------------------------

const quiets = []; // called once nothing runs

// Calls f once nothing in this process goes on by itself: no timer, no connection, no
// call of another function, no answer that waits to be taken. Node tells of that when
// the channel does not count.
function quiet(f) {
  if (process.listenerCount('beforeExit', becomeQuiet) === 0) process.on('beforeExit', becomeQuiet);
  quiets.push(f);
  listenForQuiet();
}

const waits = () => sents.size > 0 || [...calls.values()].some((call) => call.wake);

function listenForQuiet() {
  if (quiets.length && !waits()) channel.unref();
}

function becomeQuiet() {
  channel.ref();
  if (!waits()) quiets.splice(0).forEach((f) => f());
}

// --- Answers ----------------------------------------------------------------

function encodeHeaders(headers) {
  const pairs = [];
  if (headers == null) return pairs;
  const entries = typeof headers[Symbol.iterator] === 'function' ? headers : Object.entries(headers);
  for (const [name, value] of entries) {
    for (const v of Array.isArray(value) ? value : [value]) {
      const s = String(v);
      if (typeof name !== 'string' || !TOKEN.test(name)) throw new TypeError(`header name ${inspect(name)} is not allowed in HTTP`);
      if (CONTROL.test(s)) throw new TypeError(`value of header ${name} has control characters: ${inspect(s)}`);
      pairs.push([name, s]);
    }
  }
  if (pairs.length > MAX_HEADERS) throw new RangeError(`${pairs.length} headers, at most ${MAX_HEADERS}`);
  return pairs;
}

const isStream = (v) => v != null && typeof v === 'object' && !(v instanceof Uint8Array) &&
  (typeof v[Symbol.asyncIterator] === 'function' || (typeof v.next === 'function' && typeof v[Symbol.iterator] === 'function'));

// Returns [Buffer, content type], or null for what is no plain body.
function encodePiece(v) {
  if (typeof v === 'string') return [Buffer.from(v), 'text/plain; charset=utf-8'];
  if (v instanceof Uint8Array) return [Buffer.from(v.buffer, v.byteOffset, v.byteLength), 'application/octet-stream'];
  return null;
}

function encodeBody(v) {
  if (v === undefined || v === null) return [Buffer.alloc(0), null];
  const plain = encodePiece(v);
  if (plain) return plain;
  if (typeof v === 'object') {
    let text;
    try {
      text = JSON.stringify(v);
    } catch (e) {
      throw new TypeError(`the handler's answer is no JSON: ${e.message}`);
    }
    if (text !== undefined) return [Buffer.from(text), 'application/json'];
  }
  throw new TypeError(`the handler returned ${inspect(v)}, not a string, Buffer, object, undefined, ` +
    '{status, headers, body}, [status, headers, body] or a stream');
}

const isStatus = (n) => Number.isInteger(n) && n >= 200 && n <= 599;

function takeApart(result) {
  let status, headers, body = result;
  if (Array.isArray(result) && result.length === 3 && typeof result[0] === 'number' &&
      (result[1] == null || typeof result[1] === 'object')) {
    [status, headers, body] = result;
  } else if (result !== null && typeof result === 'object' && !isStream(result) && !(result instanceof Uint8Array)) {
    const s = result.status ?? result.statusCode;
    if (typeof s === 'number' && ('body' in result || 'headers' in result)) {
      [status, headers, body] = [s, result.headers, result.body];
    }
  }
  if (status !== undefined && !isStatus(status)) throw new RangeError(`status ${status} is not a number from 200 to 599`);
  return { status, headers: encodeHeaders(headers), body };
}

async function respond(call, result) {
  let { status, headers, body } = takeApart(result);
  let rest = null, data, type;
  if (isStream(body)) {
    rest = body[Symbol.asyncIterator] ? body[Symbol.asyncIterator]() : body[Symbol.iterator]();
    // The first piece before RESPONSE: an exception before it is a clean failure.
    const first = await rest.next();
    if (first.done) rest = null;
    [data, type] = first.done ? [Buffer.alloc(0), 'application/octet-stream'] : streamPiece(first.value);
  } else {
    [data, type] = encodeBody(body);
  }
  if (call.over) {
    await rest?.return?.();
    return;
  }
  status ??= body == null ? 204 : 200;
  if (type && !headers.some(([n]) => n.toLowerCase() === 'content-type')) headers.push(['content-type', type]);
  const meta = json({ status, headers });
  if (meta.length > MAX_META) throw new RangeError(`${meta.length} bytes of headers, at most ${MAX_META}`);
  const n = Buffer.alloc(4);
  n.writeUInt32LE(meta.length);
  if (!rest && data.length > FIRST && respondInFile(call, n, meta, data)) return;
  if (!rest && data.length <= FIRST) {
    send(RESPONSE, 0, call.id, n, meta, data);
    return;
  }
  send(RESPONSE, MORE, call.id, n, meta, data.subarray(0, FIRST));
  let wanted = await sendData(call, data.subarray(FIRST));
  if (rest) {
    try {
      while (wanted) {
        const next = await rest.next();
        if (next.done) break;
        wanted = await sendData(call, streamPiece(next.value)[0]);
      }
    } finally {
      await rest.return?.();
    }
  }
  if (!call.over) send(DATA, 0, call.id);
}

// Answers with data in a file, which the engine takes over; false where it is not to
// be in one: it takes memory for as long as the client takes it.
function respondInFile(call, n, meta, data) {
  const dir = process.env.FRE_FILES;
  if (!dir || data.length > (Number(process.env.FRE_MEMORY_BYTES) || 128 << 20) / 32) return false;
  const name = `.fre-${process.pid}-${call.id}`;
  const file = path.join(dir, name);
  try {
    fs.writeFileSync(file, data, { flag: 'wx', mode: 0o600 });
  } catch { // no room
    try {
      fs.unlinkSync(file);
    } catch {} // it was not made
    return false;
  }
  send(NAMED, 0, call.id, n, meta, json({ offset: 0, length: data.length, name }));
  return true;
}

function streamPiece(v) {
  const p = encodePiece(v);
  if (!p) throw new TypeError(`the handler's stream gave ${inspect(v)}, not a string or Buffer`);
  return p;
}

let handler;
let starting = []; // calls that came before the handler was loaded

async function handle(call) {
  if (starting) {
    starting.push(call);
    return;
  }
  if (call.over) return; // cancelled while its body came
  const body = call.parts.length === 1 ? call.parts[0] : Buffer.concat(call.parts);
  call.parts = null;
  try {
    await respond(call, await handler(new Event(call.meta, body), new Context(call)));
    if (!call.over) end(call);
  } catch (e) {
    if (!call.over) fail(call, ...describe(e));
  }
}

// --- Life -------------------------------------------------------------------

// No one can tell whose error this is: all that is in flight fails, and the
// state of the process is not to be trusted.
function crash(e) {
  const d = describe(e);
  if (!handler) send(FAILED, 0, 0, failure(...d));
  else send(STOP, 0, 0); // before anybody can know of a failure: the next event is for another instance
  for (const call of [...calls.values()]) fail(call, ...d);
  channel.end(() => process.exit(1));
}
process.on('uncaughtException', crash);
process.on('unhandledRejection', crash);

// Returns the function that a handler names.
async function load(root, name) {
  const dot = name.lastIndexOf('.');
  if (dot <= 0 || dot === name.length - 1) throw new TypeError(`handler ${inspect(name)} is not file.export`);
  const [file, member] = [path.join(root, name.slice(0, dot)), name.slice(dot + 1)];
  const found = locate(file);
  if (!found) throw new Error(`the function has no ${name.slice(0, dot)}.js, .cjs or .mjs`);
  const module = await open(found);
  const f = module[member] ?? module.default?.[member] ?? (member === 'default' ? module : undefined);
  if (f === undefined) throw new TypeError(`${name.slice(0, dot)} exports no ${member}`);
  if (typeof f !== 'function') throw new TypeError(`${name} is ${typeof f}, not a function`);
  return f;
}

// The file that a handler means: one of these names, or what a directory's package.json or
// index is. require alone knows neither .cjs nor .mjs, and takes a .json for it.
function locate(file) {
  const first = (names) => names.find((n) => fs.statSync(n, { throwIfNoEntry: false })?.isFile());
  const found = first(['.js', '.cjs', '.mjs'].map((extension) => file + extension));
  if (found) return found;
  try {
    return require.resolve(file);
  } catch { /* perhaps a directory of ES modules */ }
  let target;
  try {
    const { exports } = JSON.parse(fs.readFileSync(path.join(file, 'package.json')));
    target = exported(exports?.['.'] ?? exports);
  } catch { /* it has none */ }
  return first([target, 'index.cjs', 'index.mjs'].filter(Boolean).map((n) => path.join(file, n)));
}

const CONDITIONS = ['node', 'import', 'module-sync', 'require', 'default'];

// The first target for node of a package.json's "exports" (nodejs.org/api/packages.html).
function exported(exports) {
  if (typeof exports !== 'object' || exports === null) return exports;
  return Object.keys(exports).filter((c) => CONDITIONS.includes(c)).map((c) => exported(exports[c])).find(Boolean);
}

async function open(file) {
  if (!file.endsWith('.mjs')) {
    try {
      return require(file);
    } catch (e) {
      if (e.code !== 'ERR_REQUIRE_ESM' && e.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw e;
    }
  }
  return import(pathToFileURL(file));
}

function start(name) {
  const root = process.env.FRE_FUNCTION_DIR || '/function';
  process.argv.splice(1, 2, path.join(root, name));
  let wrap = (f) => f;
  if (process.env.FRE_CONTRACT === 'lambda') {
    delete process.env.FRE_CONTRACT;
    const lambda = require('./lambda.js');
    globalThis.awslambda = lambda.awslambda;
    ({ wrap } = lambda);
  }
  load(root, name).then((f) => {
    handler = wrap(f, quiet);
    const concurrency = Math.max(1, Number.parseInt(process.env.FRE_CONCURRENCY || '1', 10) || 1);
    send(READY, 0, 0, json({ protocol: 1, runtime: `node ${process.versions.node}`, concurrency }));
    const early = starting;
    starting = null;
    early.forEach(handle);
  }, (e) => {
    send(FAILED, 0, 0, failure(...describe(e)));
    channel.end(() => process.exit(1));
  });
}

// Waits for a function. What every function's start and events run through is
// compiled, by a function of our own and events for it over a socket of our own,
// and the garbage of it all is collected.
async function park() {
  await import('data:text/javascript,'); // the loader of ES modules
  const real = channel, realFD = channelFD;
  const file = `/tmp/.fre-${process.pid}`;
  const server = net.createServer().listen(file);
  const engine = net.connect(file);
  channel = await new Promise((resolve) => server.once('connection', resolve));
  channelFD = channel._handle?.fd ?? -1; // -1: by the stream
  channel.on('data', arrived);
  starting = null;
  for (let i = 1; i <= WARM_EVENTS; i++) {
    delete require.cache[require.resolve('./warm.js')];
    handler = await load(__dirname, 'warm.handle');
    engine.write(warmEvent(i));
    await new Promise((resolve) => engine.once('data', resolve));
  }
  require('./lambda.js');
  const context = new Context(new Call(0, {}, null));
  context.logger.debug('%s', inspect(context.signal));
  delete require.cache[require.resolve('./warm.js')];
  engine.destroy();
  channel.destroy();
  await new Promise((resolve) => server.close(resolve));
  [channel, channelFD] = [real, realFD];
  handler = undefined;
  starting = [];
  v8.setFlagsFromString('--expose-gc');
  vm.runInNewContext('gc')();
  v8.setFlagsFromString('--no-expose-gc');
  parked = true;
  send(PARKED, 0, 0);
}

// After so many the way from LOAD to the handler's first line takes 1.7 ms of CPU,
// after none 2.6; more gain nothing.
const WARM_EVENTS = 40;

// An INVOKE frame for warm.js.
function warmEvent(id) {
  const meta = json({ headers: [['a', 'b']], query: 'a=b' });
  const head = Buffer.allocUnsafe(20);
  putHead(head, 4 + meta.length + 2, INVOKE, 0, id);
  head.writeUInt32LE(meta.length, 16);
  return Buffer.concat([head, meta, Buffer.from('{}')]);
}

// Becomes the process of the function that LOAD names.
function become(id, payload) {
  const { handler: wanted, dir, env } = decode(payload.toString());
  if (id !== 0 || typeof wanted !== 'string' || typeof dir !== 'string' || env === null || typeof env !== 'object') die('LOAD');
  parked = false;
  process.chdir(dir);
  for (const n of Object.keys(process.env)) if (!(n in env)) delete process.env[n];
  Object.assign(process.env, env); // TZ takes effect here
  start(wanted);
}

if (process.argv.length > 2) start(process.argv[2]);
else park();
