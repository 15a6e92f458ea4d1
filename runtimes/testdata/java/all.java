import fre.Context;
import fre.Event;
import fre.Json;
import fre.Logger;
import fre.Response;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.Stream;

public class all {
    public Response echo(Event event) {
        return new Response(201, event.body()).header("X-Path", event.path()).header("x-many", "a").header("x-many", "b");
    }

    static Map<String, Object> describe(Event event, Context context) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("method", event.method());
        m.put("path", event.path());
        m.put("query", event.query());
        m.put("header", event.headers().get("X-TWICE"));
        m.put("text", event.text());
        m.put("function", context.function());
        m.put("id", context.id());
        m.put("tenant", context.tenant());
        m.put("deadline", context.deadline() / 1000.0);
        m.put("left", context.remaining() > 0 && !context.cancelled());
        return m;
    }

    public String text() {
        return "grüße";
    }

    public byte[] data() {
        return new byte[] {0, -1};
    }

    public void nothing(Map<String, Object> event) {}

    public List<Object> array() {
        return Arrays.asList(1, "two", null);
    }

    record Sum(long sum) {}

    public Sum json_in(List<Long> event) {
        return new Sum(event.stream().mapToLong(n -> n).sum());
    }

    public String json_echo(Object event) {
        return Json.write(event);
    }

    public String parameters(String text, Context context) {
        return text + context.id();
    }

    public Object input(InputStream in) throws Exception {
        return new String(in.readAllBytes()) + "!";
    }

    public Object raises() {
        throw new IllegalStateException("no such thing");
    }

    public Object raises_cause() {
        try {
            return raises();
        } catch (IllegalStateException e) {
            throw new RuntimeException("outer", e);
        }
    }

    public Object unserialisable() {
        Map<String, Object> m = new HashMap<>();
        m.put("m", m);
        return m;
    }

    public Object wrong_type() {
        return new Object();
    }

    public Object bad_status() {
        return new Response(99, "");
    }

    public Object bad_header() {
        return new Response(200, "").header("a", "b\r\nc: d");
    }

    public Object many_headers() {
        Response r = new Response(200, "");
        IntStream.range(0, 300).forEach(i -> r.header("a", "b"));
        return r;
    }

    public Object big_headers() {
        return new Response(200, "").header("a", "b".repeat(300 << 10));
    }

    public Stream<String> stream() {
        return IntStream.range(0, 5).mapToObj(i -> "part " + i + "\n");
    }

    public Response stream_status() {
        byte[] piece = "x".repeat(100_000).getBytes();
        Iterable<byte[]> pieces = () -> Collections.nCopies(30, piece).iterator();
        return new Response(202, pieces).header("content-type", "text/x");
    }

    public Iterator<String> stream_nothing() {
        return Collections.emptyIterator();
    }

    public CompletionStage<String> asynchronous() {
        return CompletableFuture.supplyAsync(() -> "async");
    }

    public InputStream readable() {
        return new ByteArrayInputStream("ab".getBytes());
    }

    private static Iterator<Object> pieces(Object... pieces) {
        Iterator<Object> all = Arrays.asList(pieces).iterator();
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return all.hasNext();
            }

            @Override
            public Object next() {
                Object v = all.next();
                if (v instanceof RuntimeException e) {
                    e.fillInStackTrace();
                    throw e;
                }
                return v;
            }
        };
    }

    public Object stream_raises() {
        return pieces("begun", new IllegalStateException("in the middle"));
    }

    public Object stream_raises_first() {
        return pieces(new IllegalStateException("at first"));
    }

    public Object stream_wrong() {
        return pieces("begun", 7);
    }

    public Stream<byte[]> endless() {
        return Stream.generate(() -> new byte[10_000]);
    }

    public String logs(Event event, Context context) {
        Logger logger = context.logger();
        logger.debug("d");
        logger.info("i %d", 7);
        logger.warning("w");
        logger.error("e");
        return "ok";
    }

    public String prints() {
        System.out.print("to std");
        System.out.println("out");
        System.err.println("to stderr");
        return "ok";
    }

    private static byte[] run(String... args) throws Exception {
        Process p = new ProcessBuilder(args).start();
        byte[] out = p.getInputStream().readAllBytes();
        p.waitFor();
        return out;
    }

    public byte[] children() throws Exception {
        return run("/bin/sh", "-c", "readlink /proc/self/fd/3 || echo none");
    }

    private final CyclicBarrier barrier = new CyclicBarrier(8);

    public byte[] concurrent(byte[] event) throws Exception {
        barrier.await(600, TimeUnit.SECONDS); // returns once eight events run at once
        return event;
    }

    public Object recursion(Event event) {
        return recursion(event);
    }

    public Object memory() {
        List<long[]> all = new ArrayList<>();
        for (;;) {
            all.add(new long[1 << 20]);
        }
    }

    public Object leaves() {
        System.exit(3);
        return null;
    }

    public Object dies() {
        Runtime.getRuntime().halt(3);
        return null;
    }

    public Object waits(Event event, Context context) throws Exception {
        context.logger().info("waiting");
        try {
            Thread.sleep(3600_000);
        } catch (InterruptedException e) {
            context.logger().info("interrupted, cancelled " + context.cancelled());
            throw e;
        }
        return null;
    }

    public Object not_callable = 7;

    public Object many(Event event) {
        return null;
    }

    public Object many(String event) {
        return null;
    }

    public Object unknown(Thread event) {
        return null;
    }

    public Map<String, Object> surroundings() throws Exception {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("hour", java.time.Instant.EPOCH.atZone(java.time.ZoneId.systemDefault()).getHour());
        m.put("env", System.getenv());
        m.put("cwd", System.getProperty("user.dir"));
        m.put("argv", System.getProperties().stringPropertyNames().stream()
            .filter(n -> !n.equals("sun.java.command")).sorted().map(n -> n + "=" + System.getProperty(n)).toList());
        m.put("path", List.of("context " + (Thread.currentThread().getContextClassLoader() == all.class.getClassLoader())));
        m.put("child", new String(run("/usr/bin/env")));
        return m;
    }
}
