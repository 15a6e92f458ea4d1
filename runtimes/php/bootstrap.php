<?php

// FRE's PHP bootstrap: loads the handler and speaks the channel protocol
// (docs/protocol.md) on file descriptor 3.
//
//	php bootstrap.php file.function
//	php bootstrap.php                parks: the engine names the function later
//
// A process of PHP handles one event at a time, whatever FRE_CONCURRENCY says.

declare(strict_types=1);

namespace Fre;

// --- What a handler sees ----------------------------------------------------

/**
 * One request. body and text: the same bytes; headers: lower-case name => values
 * joined with ", "; rawHeaders: [name, value] as they came; query: parameter =>
 * list of values.
 */
final class Event
{
    public readonly string $method;
    public readonly string $path;
    public readonly string $rawQuery;
    public readonly array $rawHeaders;
    public readonly array $headers;
    public readonly array $query;
    public readonly string $text;

    public function __construct(array $meta, public readonly string $body)
    {
        $this->text = $body;
        $this->method = $meta['method'] ?? '';
        $this->path = $meta['path'] ?? '';
        $this->rawQuery = $meta['query'] ?? '';
        $this->rawHeaders = $meta['headers'] ?? [];
        $headers = [];
        foreach ($this->rawHeaders as [$name, $value]) {
            $name = strtolower($name);
            $headers[$name] = isset($headers[$name]) ? $headers[$name] . ', ' . $value : $value;
        }
        $this->headers = $headers;
        $query = [];
        foreach ($this->rawQuery === '' ? [] : explode('&', $this->rawQuery) as $pair) {
            if ($pair !== '') {
                [$name, $value] = explode('=', $pair, 2) + [1 => ''];
                $query[urldecode($name)][] = urldecode($value);
            }
        }
        $this->query = $query;
    }

    /** The value of a header whatever the case of its name, or null. */
    public function header(string $name): ?string
    {
        return $this->headers[strtolower($name)] ?? null;
    }

    /** The body's JSON, objects as arrays. */
    public function json(): mixed
    {
        return json_decode($this->body, true, 512, JSON_THROW_ON_ERROR);
    }
}

/** What the engine says about one event. deadline: seconds since 1970. */
final class Context
{
    public readonly string $function;
    public readonly string $id;
    public readonly string $tenant;
    public readonly float $deadline;
    public readonly Logger $logger;

    public function __construct(int $id, array $meta)
    {
        $this->function = $meta['function'] ?? '';
        $this->id = $meta['id'] ?? '';
        $this->tenant = $meta['tenant'] ?? '';
        $this->deadline = ($meta['deadline_ms'] ?? 0) / 1000;
        $this->logger = new Logger($id);
    }

    /** Seconds until the deadline. */
    public function remaining(): float
    {
        return $this->deadline - microtime(true);
    }
}

/** Lines for the function's log, with the event's id: info('x is %d', $x). */
final class Logger
{
    public function __construct(private int $id)
    {
    }

    public function debug(string|\Stringable $message, mixed ...$args): void
    {
        $this->log('debug', (string) $message, $args);
    }

    public function info(string|\Stringable $message, mixed ...$args): void
    {
        $this->log('info', (string) $message, $args);
    }

    public function warning(string|\Stringable $message, mixed ...$args): void
    {
        $this->log('warning', (string) $message, $args);
    }

    public function error(string|\Stringable $message, mixed ...$args): void
    {
        $this->log('error', (string) $message, $args);
    }

    private function log(string $level, string $message, array $args): void
    {
        $message = $args ? vsprintf($message, $args) : $message;
        Instance::send(LOG, 0, $this->id, encode(['level' => $level, 'message' => cut($message, MAX_META)]));
    }
}

// --- The channel ------------------------------------------------------------

const READY = 1, FAILED = 2, INVOKE = 3, RESPONSE = 4, DATA = 5, ERROR = 6, CANCEL = 7, WINDOW = 8, LOG = 9, STOP = 10, PARKED = 11, LOAD = 12;
const MORE = 1;
const MAX_PAYLOAD = 1 << 20;
const MAX_META = 256 << 10;
const MAX_HEADERS = 256;
const FULL_WINDOW = 256 << 10;
const GRANT = 128 << 10; // bytes of a request body taken before the window is opened again
const FIRST = 256 << 10; // bytes of an answer that go along in RESPONSE
const NAMED = 0x21; // FILE: the answer is in a file whose name follows
const EXIT_PROTOCOL = 70; // EX_SOFTWARE of sysexits.h
const PIECE = 64 << 10; // bytes read at once of a stream that is an answer's body

/** JSON of what the bootstrap says. */
function encode(array $fields): string
{
    return json_encode($fields, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_INVALID_UTF8_SUBSTITUTE | JSON_THROW_ON_ERROR);
}

/** Shortens text so that its JSON stays below limit bytes. */
function cut(string $text, int $limit): string
{
    $n = strlen($text);
    while ($n * 6 > $limit - 64 && strlen(encode([substr($text, 0, $n)])) > $limit - 64) {
        $n >>= 1;
    }
    return $n < strlen($text) ? substr($text, 0, $n) . '...' : $text;
}

/** One invocation, from INVOKE to the last frame of its answer. */
final class Call
{
    public array $parts;
    public int $taken = 0; // bytes of DATA since the last grant
    public int $window = FULL_WINDOW; // bytes of the answer that may be sent
    public bool $cancelled = false;

    public function __construct(public int $id, public array $meta, string $body)
    {
        $this->parts = [$body];
    }
}

/** The client has gone: breaks off an answer. */
final class Cancelled extends \Exception
{
}

/** This process: its channel, its calls, its handler. */
final class Instance
{
    /** @var resource */
    private static $channel;
    private static int $pid;
    private static bool $parked = false; // waiting for LOAD
    private static bool $stopping = false;
    private static bool $over = false; // nobody is left to answer to
    /** @var array<int, Call> */
    private static array $calls = [];
    /** @var list<Call> met while another was answered */
    private static array $waiting = [];
    private static ?Call $current = null;
    private static string $name;
    private static ?\Closure $handler = null;

    /** Opens the channel; parks where no handler is named. Returns the handler's file. */
    public static function open(?string $name): string
    {
        self::$pid = getmypid();
        $fd = (int) (getenv('FRE_CHANNEL') ?: 3);
        self::$channel = fopen("php://fd/$fd", 'r+');
        stream_set_read_buffer(self::$channel, 0);
        stream_set_timeout(self::$channel, -1);
        self::loadExtensions();
        if (extension_loaded('ffi')) {
            // The function's children get neither the channel nor the copy of it that
            // PHP has made.
            $libc = \FFI::cdef('int fcntl(int fd, int command, ...);');
            for ($n = $fd; $n < $fd + 8; $n++) {
                $libc->fcntl($n, 2, 1); // F_SETFD, FD_CLOEXEC
            }
        }
        register_shutdown_function(self::shutDown(...));
        if ($name === null) {
            $name = self::park();
        }
        self::$name = $name;
        $GLOBALS['argv'] = $_SERVER['argv'] = [$name];
        $GLOBALS['argc'] = $_SERVER['argc'] = 1;
        $timezone = getenv('TZ');
        if ($timezone !== false && $timezone !== '') {
            @date_default_timezone_set($timezone);
        }
        $memory = (int) getenv('FRE_MEMORY_BYTES');
        if ($memory > 0) {
            // So that an error says where memory ran out, before the sandbox's limit kills:
            // what PHP itself and its libraries take comes on top.
            ini_set('memory_limit', (string) max($memory >> 1, $memory - (32 << 20)));
        }
        $dot = strrpos($name, '.');
        if (!$dot || $dot === strlen($name) - 1) {
            throw new \ValueError("handler '$name' is not file.function");
        }
        $file = (getenv('FRE_FUNCTION_DIR') ?: '/function') . '/' . substr($name, 0, $dot) . '.php';
        if (!is_file($file)) {
            throw new \RuntimeException('the function has no ' . substr($name, 0, $dot) . '.php');
        }
        return $file;
    }

    /** Loads extensions that came with other packages than the base's own. */
    private static function loadExtensions(): void
    {
        $files = @scandir(ini_get('extension_dir')) ?: [];
        $left = array_filter($files, static fn($f) => str_ends_with($f, '.so') && $f !== 'opcache.so' && !extension_loaded(substr($f, 0, -3)));
        do { // as long as one of them was what others need first
            $before = count($left);
            $left = array_filter($left, static fn($f) => !@dl($f));
        } while ($left && count($left) < $before);
    }

    /** Finds the handler in what its file has defined, and says READY. */
    public static function ready(): void
    {
        $dot = strrpos(self::$name, '.');
        $function = substr(self::$name, $dot + 1);
        [$class, $method] = explode('::', $function, 2) + [1 => null];
        if ($method === null) {
            if (!function_exists($function)) {
                throw new \TypeError(substr(self::$name, 0, $dot) . ".php defines no function $function");
            }
            self::$handler = $function(...);
        } elseif (!class_exists($class)) {
            throw new \TypeError(substr(self::$name, 0, $dot) . ".php defines no class $class");
        } elseif (!method_exists($class, $method)) {
            throw new \TypeError("class $class has no method $method");
        } else {
            $static = (new \ReflectionMethod($class, $method))->isStatic();
            self::$handler = \Closure::fromCallable([$static ? $class : new $class(), $method]);
        }
        self::send(READY, 0, 0, encode(['protocol' => 1, 'runtime' => 'php ' . PHP_VERSION, 'concurrency' => 1]));
    }

    /** Says FAILED, and ends. */
    public static function fail(\Throwable $e): never
    {
        self::sendFailure(FAILED, 0, $e);
        self::end(1);
    }

    /** Handles events until there are no more. */
    public static function serve(): never
    {
        for (;;) {
            while (self::$waiting) {
                self::handle(array_shift(self::$waiting));
            }
            if (self::$stopping && !self::$calls) {
                self::end(0);
            }
            $call = self::takeFrame();
            if ($call !== null) {
                self::handle($call);
            }
        }
    }

    private static function end(int $status): never
    {
        self::$over = true;
        exit($status);
    }

    private static function die(string $why): never
    {
        self::$over = true;
        @file_put_contents('php://stderr', "fre: the engine broke the channel protocol: $why\n");
        exit(EXIT_PROTOCOL);
    }

    /** Runs when the process ends, which may not have been the bootstrap's will. */
    private static function shutDown(): void
    {
        if (self::$over || getmypid() !== self::$pid) {
            return;
        }
        ini_set('memory_limit', '-1'); // it may have run out
        $e = error_get_last();
        [$type, $message, $stack] = ['Exit', 'the handler called exit', ''];
        if ($e !== null && $e['type'] & (E_ERROR | E_PARSE | E_CORE_ERROR | E_COMPILE_ERROR | E_USER_ERROR | E_RECOVERABLE_ERROR)) {
            [$type, $message, $stack] = ['FatalError', $e['message'], "$e[message] in $e[file]:$e[line]"];
        } else {
            @file_put_contents('php://stderr', "Exit: $message\n");
        }
        $failure = self::failure($type, $message, $stack);
        self::$over = true;
        if (self::$handler === null) {
            self::send(FAILED, 0, 0, $failure);
            exit(1);
        }
        self::send(STOP, 0, 0, ''); // before anybody can know of a failure: the next event is for another instance
        foreach (self::$calls as $call) {
            self::send(ERROR, 0, $call->id, $failure);
        }
    }

    /** The next n bytes; null at the end of the channel. */
    private static function read(int $n): ?string
    {
        $data = '';
        while (($left = $n - strlen($data)) > 0) {
            $piece = @fread(self::$channel, $left);
            if ($piece === false || $piece === '') {
                if (!feof(self::$channel)) {
                    continue; // interrupted by a signal
                }
                return $data === '' ? null : self::die('the channel ended inside a frame');
            }
            $data = $data === '' ? $piece : $data . $piece;
        }
        return $data;
    }

    /** Kind, flags, id and payload of the next frame. */
    private static function readFrame(): array
    {
        $head = self::read(16);
        if ($head === null) {
            self::end(0);
        }
        ['size' => $size, 'kind' => $kind, 'flags' => $flags, 'fds' => $fds, 'id' => $id] = unpack('Vsize/Ckind/Cflags/vfds/Pid', $head);
        if ($size > MAX_PAYLOAD) {
            self::die("frame of $size bytes");
        }
        $known = self::$parked ? $kind === LOAD : in_array($kind, [INVOKE, DATA, CANCEL, WINDOW, STOP], true);
        if (!$known) {
            self::die(sprintf('frame kind 0x%02x', $kind));
        }
        if ($fds || $flags & ~MORE || $flags && $kind !== INVOKE && $kind !== DATA) {
            self::die(sprintf('flags or file descriptors of frame kind 0x%02x', $kind));
        }
        $payload = $size ? self::read($size) : '';
        return [$kind, $flags, $id, $payload ?? self::die('the channel ended inside a frame')];
    }

    public static function send(int $kind, int $flags, int $id, string $payload): void
    {
        if (getmypid() !== self::$pid) {
            exit(1); // a child that goes on as if it were the function
        }
        $size = strlen($payload) + 16;
        try {
            $sent = @fwrite(self::$channel, pack('VCCvP', $size - 16, $kind, $flags, 0, $id) . $payload);
        } catch (\Throwable) { // what the function makes of warnings
            $sent = false;
        }
        if ($sent !== $size) {
            self::end(0); // the engine has gone
        }
    }

    /** The members of the object that JSON from the engine is. */
    private static function decode(string $json): array
    {
        $fields = json_decode($json, true);
        return is_array($fields) && $json[0] === '{' ? $fields : self::die('metadata');
    }

    private static function failure(string $type, string $message, string $stack): string
    {
        return encode(['type' => cut($type, 1024), 'message' => cut($message, 64 << 10), 'stack' => cut($stack, 128 << 10)]);
    }

    /** Tells the engine, and stderr, about an exception of the user's code. */
    private static function sendFailure(int $kind, int $id, \Throwable $e): void
    {
        $stack = self::describe($e);
        @file_put_contents('php://stderr', $stack . "\n");
        self::send($kind, 0, $id, self::failure(self::type($e), $e->getMessage(), $stack));
    }

    private static function type(\Throwable $e): string
    {
        return explode("\0", $e::class)[0]; // what follows in anonymous classes is a path
    }

    /** An exception and those it came from as PHP shows them, without the bootstrap's frames. */
    private static function describe(\Throwable $e): string
    {
        $before = $e->getPrevious() ? self::describe($e->getPrevious()) . "\n\nNext " : '';
        $text = self::type($e) . ': ' . $e->getMessage() . ($e->getFile() === __FILE__ ? '' : " in {$e->getFile()}:{$e->getLine()}");
        $frames = [];
        foreach ($e->getTrace() as $f) {
            $class = $f['class'] ?? '';
            $own = ($f['file'] ?? '') === __FILE__;
            if ($own && ($f['function'] === 'require' || is_a($class, \Traversable::class, true)) || $class === self::class) {
                break;
            }
            $place = $own || !isset($f['file']) ? '[internal function]' : "$f[file]($f[line])";
            $frames[] = '#' . count($frames) . " $place: $class" . ($f['type'] ?? '') . "$f[function]()";
            if ($own) {
                break;
            }
        }
        $frames[] = '#' . count($frames) . ' {main}';
        return "$before$text\nStack trace:\n" . implode("\n", $frames);
    }

    // --- Calls --------------------------------------------------------------

    /** Acts on the next frame; returns the call whose request is now whole, or null. */
    private static function takeFrame(): ?Call
    {
        [$kind, $flags, $id, $payload] = self::readFrame();
        if ($kind === INVOKE) {
            $n = strlen($payload) < 4 ? MAX_META + 1 : unpack('V', $payload)[1];
            if ($n > MAX_META || $n > strlen($payload) - 4 || $id === 0 || isset(self::$calls[$id])) {
                self::die('INVOKE');
            }
            $call = self::$calls[$id] = new Call($id, self::decode(substr($payload, 4, $n)), substr($payload, 4 + $n));
            return $flags ? null : $call;
        }
        if ($kind === STOP) {
            self::$stopping = true;
            return null;
        }
        $call = self::$calls[$id] ?? null;
        if ($call === null) { // crossed the end of its answer
            return null;
        }
        if ($kind === DATA) {
            $call->parts[] = $payload;
            $call->taken += strlen($payload);
            if (!$flags) {
                return $call;
            }
            if ($call->taken >= GRANT) {
                self::send(WINDOW, 0, $id, pack('V', $call->taken));
                $call->taken = 0;
            }
        } elseif ($kind === CANCEL) {
            $call->cancelled = true;
        } elseif (strlen($payload) !== 4) {
            self::die('WINDOW');
        } else {
            $call->window += unpack('V', $payload)[1];
        }
        return null;
    }

    private static function handle(Call $call): void
    {
        self::$current = $call;
        error_clear_last();
        try {
            if ($call->cancelled) {
                throw new Cancelled('the client has gone');
            }
            $event = new Event($call->meta, implode('', $call->parts));
            $call->parts = [];
            self::respond($call, (self::$handler)($event, new Context($call->id, $call->meta)));
        } catch (Cancelled $e) {
            self::send(ERROR, 0, $call->id, self::failure('Cancelled', $e->getMessage(), ''));
        } catch (\Throwable $e) {
            self::sendFailure(ERROR, $call->id, $e);
        }
        unset(self::$calls[$call->id]);
        self::$current = null;
        while (ob_get_level() > 0 && @ob_end_flush()) {
            continue;
        }
    }

    // --- Answers ------------------------------------------------------------

    private static function respond(Call $call, mixed $result): void
    {
        [$status, $headers, $result] = self::takeApart($result);
        if ($status !== null && ($status < 200 || $status > 599)) {
            throw new \ValueError("status $status is not a number from 200 to 599");
        }
        $pairs = self::headers($headers);
        $rest = null;
        if (is_resource($result) && get_resource_type($result) === 'stream') {
            $result = self::pieces($result);
        }
        if ($result instanceof \Traversable && !$result instanceof \JsonSerializable) {
            // The first piece before RESPONSE: an exception before it is a clean failure.
            $rest = $result instanceof \Iterator ? $result : new \IteratorIterator($result);
            $rest->rewind();
            $more = $rest->valid();
            $body = $more ? self::piece($rest->current()) : '';
            $type = $more ? self::textOrBytes($body) : 'application/octet-stream';
            $rest = $more ? $rest : null;
        } else {
            [$body, $type] = self::body($result);
        }
        if ($type !== null && !array_filter($pairs, static fn($p) => strtolower($p[0]) === 'content-type')) {
            $pairs[] = ['content-type', $type];
        }
        $status ??= $result === null ? 204 : 200;
        $meta = encode(['status' => $status, 'headers' => $pairs]);
        if (strlen($meta) > MAX_META) {
            throw new \ValueError(strlen($meta) . ' bytes of headers, at most ' . MAX_META);
        }
        $head = pack('V', strlen($meta)) . $meta;
        if ($rest === null && strlen($body) > FIRST && self::respondInFile($call, $head, $body)) {
            return;
        }
        if ($rest === null && strlen($body) <= FIRST) {
            self::send(RESPONSE, 0, $call->id, $head . $body);
            return;
        }
        self::send(RESPONSE, MORE, $call->id, $head . substr($body, 0, FIRST));
        self::sendData($call, $body, FIRST);
        if ($rest !== null) {
            $body = '';
            for ($rest->next(); $rest->valid(); $rest->next()) {
                self::sendData($call, self::piece($rest->current()), 0);
            }
        }
        self::send(DATA, 0, $call->id, '');
    }

    /**
     * Answers with the body in a file, which the engine takes over; false where it is
     * not to be in one: it takes memory for as long as the client takes it.
     */
    private static function respondInFile(Call $call, string $head, string $body): bool
    {
        $dir = getenv('FRE_FILES');
        if (!$dir || strlen($body) > intdiv((int) getenv('FRE_MEMORY_BYTES') ?: 128 << 20, 32)) {
            return false;
        }
        $name = '.fre-' . getmypid() . '-' . $call->id;
        if (@file_put_contents("$dir/$name", $body) !== strlen($body)) { // no room
            @unlink("$dir/$name");
            return false;
        }
        self::send(NAMED, 0, $call->id, $head . encode(['offset' => 0, 'length' => strlen($body), 'name' => $name]));
        return true;
    }

    /** Status (null: not said), headers and body of what a handler returned. */
    private static function takeApart(mixed $result): array
    {
        if (!is_array($result)) {
            return [null, null, $result];
        }
        if (count($result) === 3 && array_is_list($result) && is_int($result[0]) && ($result[1] === null || is_array($result[1]))) {
            return $result;
        }
        $status = $result['status'] ?? $result['statusCode'] ?? null;
        if (is_int($status) && (array_key_exists('body', $result) || array_key_exists('headers', $result))) {
            return [$status, $result['headers'] ?? null, $result['body'] ?? null];
        }
        return [null, null, $result];
    }

    /** [name, value] of what a handler gave as headers: name => value or values, or such pairs. */
    private static function headers(?array $headers): array
    {
        $pairs = [];
        foreach ($headers ?? [] as $name => $value) {
            if (is_int($name) && is_array($value) && count($value) === 2 && array_is_list($value)) {
                [$name, $value] = $value;
            }
            foreach (is_array($value) ? $value : [$value] as $v) {
                if (!is_string($name) || !preg_match('/^[!#$%&\'*+\-.^_`|~0-9A-Za-z]+$/D', $name)) {
                    throw new \ValueError('header name ' . self::show($name) . ' is not allowed in HTTP');
                }
                if (!is_scalar($v) && $v !== null && !$v instanceof \Stringable) {
                    throw new \TypeError("value of header $name is " . get_debug_type($v) . ', not a string');
                }
                $v = (string) $v;
                if (preg_match('/[\0-\x08\x0a-\x1f\x7f]/', $v)) {
                    throw new \ValueError("value of header $name has control characters: " . self::show($v));
                }
                if (!preg_match('//u', $v)) {
                    throw new \ValueError("value of header $name is not UTF-8: " . self::show($v));
                }
                $pairs[] = [$name, $v];
            }
        }
        if (count($pairs) > MAX_HEADERS) {
            throw new \ValueError(count($pairs) . ' headers, at most ' . MAX_HEADERS);
        }
        return $pairs;
    }

    private static function show(mixed $v): string
    {
        return is_string($v) ? encode([substr($v, 0, 100)]) : get_debug_type($v);
    }

    /** The bytes of what is no stream, and their content type. */
    private static function body(mixed $v): array
    {
        if ($v === null) {
            return ['', null];
        }
        if (is_string($v)) {
            return [$v, self::textOrBytes($v)];
        }
        if (is_array($v) || $v instanceof \stdClass || $v instanceof \JsonSerializable) {
            try {
                return [json_encode($v, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR), 'application/json'];
            } catch (\JsonException $e) {
                throw new \TypeError("the handler's answer is no JSON: " . $e->getMessage());
            }
        }
        if ($v instanceof \Stringable) {
            return [(string) $v, self::textOrBytes((string) $v)];
        }
        throw new \TypeError('the handler returned ' . get_debug_type($v) . ', not a string, array, null, a generator, ' .
            'a stream, [status, headers, body] or such an array with these keys');
    }

    /** PHP has one type for both: bytes that are UTF-8 are text. */
    private static function textOrBytes(string $v): string
    {
        return preg_match('//u', $v) ? 'text/plain; charset=utf-8' : 'application/octet-stream';
    }

    private static function piece(mixed $v): string
    {
        if (is_string($v) || $v instanceof \Stringable) {
            return (string) $v;
        }
        throw new \TypeError("the handler's generator gave " . (is_scalar($v) ? var_export($v, true) : get_debug_type($v)) . ', not a string');
    }

    private static function pieces($stream): \Generator
    {
        while (!feof($stream)) {
            $piece = fread($stream, PIECE);
            if ($piece === false) {
                throw new \RuntimeException("the handler's stream cannot be read");
            }
            yield $piece;
        }
    }

    /** Sends data from offset at on, as far as the engine has opened the window. */
    private static function sendData(Call $call, string $data, int $at): void
    {
        do {
            while (!$call->cancelled && ($call->window <= 0 || self::pending())) {
                $other = self::takeFrame();
                if ($other !== null) {
                    self::$waiting[] = $other;
                }
            }
            if ($call->cancelled) {
                throw new Cancelled('the client has gone');
            }
            $n = min($call->window, strlen($data) - $at, FULL_WINDOW);
            if ($n > 0) {
                $call->window -= $n;
                self::send(DATA, MORE, $call->id, substr($data, $at, $n));
                $at += $n;
            }
        } while ($at < strlen($data));
    }

    /** Whether a frame has come. */
    private static function pending(): bool
    {
        $read = [self::$channel];
        $none = [];
        return (bool) @stream_select($read, $none, $none, 0);
    }

    // --- A bootstrap ahead of its function ------------------------------------

    /** Waits for LOAD and becomes that function's process. Returns its handler. */
    private static function park(): string
    {
        self::$parked = true;
        gc_collect_cycles();
        self::send(PARKED, 0, 0, '');
        [, , $id, $payload] = self::readFrame();
        self::$parked = false;
        ['handler' => $handler, 'dir' => $dir, 'env' => $env] = self::decode($payload) + ['handler' => null, 'dir' => null, 'env' => null];
        if ($id !== 0 || !is_string($handler) || !is_string($dir) || !is_array($env) || !chdir($dir)) {
            self::die('LOAD');
        }
        foreach (getenv() as $name => $_) {
            if (!isset($env[$name])) {
                putenv((string) $name);
            }
            unset($_SERVER[$name], $_ENV[$name]);
        }
        foreach ($env as $name => $value) {
            putenv("$name=$value");
            $_SERVER[$name] = $_ENV[$name] = $value;
        }
        return $handler;
    }
}

// The function's file is included here, so that its variables are global ones.
try {
    require Instance::open($argv[1] ?? null);
    Instance::ready();
} catch (\Throwable $e) {
    Instance::fail($e);
}
Instance::serve();
