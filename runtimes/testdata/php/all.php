<?php

function echo_(Fre\Event $event, Fre\Context $context): array
{
    return [201, ['X-Path' => $event->path, 'x-many' => ['a', 'b']], $event->body];
}

function describe($event, $context)
{
    return [
        'method' => $event->method,
        'path' => $event->path,
        'query' => $event->query,
        'header' => $event->header('X-Twice'),
        'text' => $event->text,
        'function' => $context->function,
        'id' => $context->id,
        'tenant' => $context->tenant,
        'deadline' => $context->deadline,
        'left' => $context->remaining() > 0,
    ];
}

function text($event, $context) { return 'grüße'; }
function data($event, $context) { return "\x00\xff"; }
function nothing($event, $context) { }
function array_($event, $context) { return [1, 'two', null]; }
function json_in($event, $context) { return ['sum' => array_sum($event->json())]; }
function object_form($event, $context) { return ['statusCode' => 203, 'headers' => ['a' => 'b'], 'body' => ['x' => 1]]; }
function raises($event, $context) { throw new ValueError('no such thing'); }

function raises_cause($event, $context)
{
    try {
        raises($event, $context);
    } catch (ValueError $e) {
        throw new RuntimeException('outer', 0, $e);
    }
}

function unserialisable($event, $context) { return ['x' => NAN]; }
function wrong_type($event, $context) { return fn() => 1; }
function bad_status($event, $context) { return [99, [], '']; }
function bad_header($event, $context) { return [200, ['a' => "b\r\nc: d"], '']; }
function many_headers($event, $context) { return [200, array_fill(0, 300, ['a', 'b']), '']; }
function big_headers($event, $context) { return [200, ['a' => str_repeat('b', 300 << 10)], '']; }

function stream($event, $context)
{
    for ($i = 0; $i < 5; $i++) {
        yield "part $i\n";
    }
}

function stream_status($event, $context)
{
    return [202, ['content-type' => 'text/x'], (function () {
        for ($i = 0; $i < 30; $i++) {
            yield str_repeat('x', 100_000);
        }
    })()];
}

function stream_nothing($event, $context) { return new EmptyIterator(); }

function readable($event, $context)
{
    $f = fopen('php://memory', 'r+');
    fwrite($f, "a\xff");
    rewind($f);
    return $f;
}

function stream_raises($event, $context)
{
    yield 'begun';
    throw new ValueError('in the middle');
}

function stream_raises_first($event, $context)
{
    throw new ValueError('at first');
    yield;
}

function stream_wrong($event, $context)
{
    yield 'begun';
    yield 7;
}

function endless($event, $context)
{
    for (;;) {
        yield str_repeat('x', 10_000);
    }
}

function logs($event, $context)
{
    $context->logger->debug('d');
    $context->logger->info('i %d', 7);
    $context->logger->warning('w');
    $context->logger->error('e');
    return 'ok';
}

function prints($event, $context)
{
    echo "to stdout\n";
    fwrite(STDERR, "to stderr\n");
    return 'ok';
}

function children($event, $context) { return shell_exec('readlink /proc/self/fd/3 /proc/self/fd/4 /proc/self/fd/5 || echo none'); }
function exits($event, $context) { exit(3); }
function memory($event, $context) { return str_repeat('x', 1 << 30); }
function recursion($event, $context) { return 1 + recursion($event, $context); }
function fatal($event, $context) { eval('class C implements Countable {}'); }
function dies($event, $context) { posix_kill(getmypid(), 9); }

function forks($event, $context)
{
    $child = pcntl_fork();
    if ($child > 0) {
        pcntl_waitpid($child, $status);
        return 'parent';
    }
    return 'child';
}

function waits($event, $context)
{
    $context->logger->info('waiting');
    sleep(3600);
}

function surroundings($event, $context)
{
    global $argv, $ofTheFile;
    return [
        'env' => getenv(),
        'cwd' => getcwd(),
        'argv' => [...$argv, ...$_SERVER['argv'], $ofTheFile, $_ENV['A'], $_SERVER['A'], $_ENV['FRE_STALE'] ?? 'none'],
        'path' => explode(':', get_include_path()),
        'hour' => (int) date('G', 0),
        'child' => shell_exec('/usr/bin/env'),
    ];
}

$ofTheFile = 'a global variable';

final class Counter
{
    private int $n = 0;

    public function count($event, $context) { return (string) ++$this->n; }
    public static function of($event, $context) { return 'static'; }
}
