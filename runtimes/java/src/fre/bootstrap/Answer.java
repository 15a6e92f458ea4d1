package fre.bootstrap;

import fre.Json;
import fre.Response;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.stream.BaseStream;

/** What a handler returned, on its way out. */
final class Answer {
    private static final int FIRST = 256 << 10; // bytes that go along in RESPONSE
    private static final int MAX_HEADERS = 256;
    private static final int PIECE = 64 << 10; // read of an InputStream at once
    private static final String OF_TEXT = "text/plain; charset=utf-8", OF_BYTES = "application/octet-stream", OF_JSON = "application/json";

    private Answer() {}

    private record Body(byte[] data, String type) {}

    /** Sends the answer. Nothing more may be sent for this call after it. */
    static void send(Call call, Object result) throws Exception {
        if (result instanceof CompletionStage<?> s) {
            try {
                result = s.toCompletableFuture().get();
            } catch (ExecutionException e) {
                throw e.getCause() instanceof Exception cause ? cause : e;
            }
        }
        int status = 0;
        List<List<String>> headers = new ArrayList<>();
        Object body = result;
        if (result instanceof Response r) {
            status = r.status();
            if (status < 200 || status > 599) {
                throw new IllegalArgumentException("status " + status + " is not a number from 200 to 599");
            }
            for (Map.Entry<String, String> h : r.headers()) {
                check(h.getKey(), h.getValue());
                headers.add(List.of(h.getKey(), h.getValue()));
            }
            if (headers.size() > MAX_HEADERS) {
                throw new IllegalArgumentException(headers.size() + " headers, at most " + MAX_HEADERS);
            }
            body = r.body();
        }
        Iterator<?> rest = pieces(body);
        if (rest == null) {
            stream(call, status, headers, whole(body), null);
            return;
        }
        try {
            // The first piece before RESPONSE: an exception before it is a clean failure.
            Body first = rest.hasNext() ? piece(rest.next()) : new Body(new byte[0], OF_BYTES);
            stream(call, status, headers, first, rest);
        } finally {
            if (body instanceof AutoCloseable c) {
                c.close();
            }
        }
    }

    private static void stream(Call call, int status, List<List<String>> headers, Body first, Iterator<?> rest) {
        if (status == 0) {
            status = first.type == null ? 204 : 200;
        }
        if (first.type != null && headers.stream().noneMatch(h -> h.get(0).equalsIgnoreCase("content-type"))) {
            headers.add(List.of("content-type", first.type));
        }
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("status", status);
        m.put("headers", headers);
        byte[] meta = Channel.json(m);
        if (meta.length > Channel.MAX_META) {
            throw new IllegalArgumentException(meta.length + " bytes of headers, at most " + Channel.MAX_META);
        }
        byte[] head = ByteBuffer.allocate(4 + meta.length).order(ByteOrder.LITTLE_ENDIAN).putInt(meta.length).put(meta).array();
        if (rest == null && first.data.length > FIRST && inFile(call, head, first.data)) {
            return;
        }
        boolean all = rest == null && first.data.length <= FIRST;
        int n = Math.min(first.data.length, FIRST);
        call.channel.send(Channel.RESPONSE, all ? 0 : Channel.MORE, call.number, first.data, 0, n, head);
        if (all) {
            return;
        }
        boolean wanted = call.data(first.data, n);
        while (wanted && rest != null && rest.hasNext()) {
            wanted = call.data(piece(rest.next()).data, 0);
        }
        if (!wanted) {
            throw new Cancelled();
        }
        call.channel.send(Channel.DATA, 0, call.number, new byte[0]);
    }

    /**
     * Answers with the body in a file, which the engine takes over; false where it is not
     * to be in one: it takes memory for as long as the client takes it.
     */
    private static boolean inFile(Call call, byte[] head, byte[] data) {
        String dir = System.getenv("FRE_FILES");
        if (dir == null || dir.isEmpty() || data.length > memory() / 32) {
            return false;
        }
        String name = ".fre-" + ProcessHandle.current().pid() + "-" + Long.toUnsignedString(call.number);
        File file = new File(dir, name);
        try (FileOutputStream out = new FileOutputStream(file)) {
            out.write(data);
        } catch (IOException e) { // no room
            file.delete();
            return false;
        }
        Map<String, Object> where = new LinkedHashMap<>();
        where.put("offset", 0);
        where.put("length", data.length);
        where.put("name", name);
        byte[] json = Channel.json(where);
        call.channel.send(Channel.FILE, 0, call.number, json, 0, json.length, head);
        return true;
    }

    private static long memory() {
        try {
            return Long.parseLong(System.getenv("FRE_MEMORY_BYTES"));
        } catch (NumberFormatException e) { // it is not said
            return 128 << 20;
        }
    }

    /** The client has gone. */
    static final class Cancelled extends RuntimeException {
        private static final long serialVersionUID = 1;

        Cancelled() {
            super("the client has gone", null, false, false);
        }
    }

    private static Iterator<?> pieces(Object v) {
        if (v instanceof Iterator<?> i) {
            return i;
        }
        if (v instanceof BaseStream<?, ?> s) {
            return s.iterator();
        }
        if (v instanceof InputStream in) {
            return new Reader(in);
        }
        return v instanceof Iterable<?> l && !(v instanceof Collection) ? l.iterator() : null;
    }

    private static final class Reader implements Iterator<byte[]> {
        private final InputStream in;
        private byte[] next;

        Reader(InputStream in) {
            this.in = in;
        }

        @Override
        public boolean hasNext() {
            if (next == null) {
                try {
                    byte[] b = new byte[PIECE];
                    int n = in.read(b);
                    next = n < 0 ? new byte[0] : n == b.length ? b : java.util.Arrays.copyOf(b, n);
                } catch (IOException e) {
                    throw new java.io.UncheckedIOException(e);
                }
            }
            return next.length > 0;
        }

        @Override
        public byte[] next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            byte[] b = next;
            next = null;
            return b;
        }
    }

    /** A plain body, or null. */
    private static Body plain(Object v) {
        if (v instanceof CharSequence s) {
            return new Body(s.toString().getBytes(StandardCharsets.UTF_8), OF_TEXT);
        }
        if (v instanceof byte[] b) {
            return new Body(b, OF_BYTES);
        }
        if (v instanceof ByteBuffer b) {
            byte[] data = new byte[b.remaining()];
            b.duplicate().get(data);
            return new Body(data, OF_BYTES);
        }
        return null;
    }

    private static Body piece(Object v) {
        Body b = plain(v);
        if (b == null) {
            throw new IllegalArgumentException("the handler's stream gave " + show(v) + ", not a String or byte[]");
        }
        return b;
    }

    private static Body whole(Object v) {
        if (v == null) {
            return new Body(new byte[0], null);
        }
        Body b = plain(v);
        if (b != null) {
            return b;
        }
        if (v instanceof Map || v instanceof Collection || v.getClass().isArray() || v.getClass().isRecord()) {
            try {
                return new Body(Json.write(v).getBytes(StandardCharsets.UTF_8), OF_JSON);
            } catch (IllegalArgumentException e) {
                throw new IllegalArgumentException("the handler's answer is no JSON: " + e.getMessage());
            }
        }
        throw new IllegalArgumentException("the handler returned " + show(v)
            + ", not a String, byte[], Map, List, array, record, null, a stream of pieces or a fre.Response");
    }

    private static String show(Object v) {
        return v == null || v instanceof Number || v instanceof Boolean ? String.valueOf(v) : "a " + v.getClass().getName();
    }

    private static final String TOKEN = "!#$%&'*+-.^_`|~";

    private static void check(String name, String value) {
        boolean token = !name.isEmpty();
        for (int i = 0; i < name.length(); i++) {
            char c = name.charAt(i);
            token &= c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || TOKEN.indexOf(c) >= 0;
        }
        if (!token) {
            throw new IllegalArgumentException("header name " + Json.write(name) + " is not allowed in HTTP");
        }
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c < ' ' && c != '\t' || c == 0x7f) {
                throw new IllegalArgumentException("value of header " + name + " has control characters: " + Json.write(value));
            }
        }
    }
}
