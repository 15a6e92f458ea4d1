package fre;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * An answer with a status, headers and a body. The body is whatever a handler
 * may return by itself: String, byte[], Map, List, a record, null, or a stream of
 * pieces (InputStream, Iterator, Iterable, java.util.stream.Stream).
 */
public final class Response {
    private final int status;
    private final Object body;
    private final List<Map.Entry<String, String>> headers = new ArrayList<>();

    public Response(int status, Object body) {
        this.status = status;
        this.body = body;
    }

    /** Adds a header; a name may come more than once. */
    public Response header(String name, Object value) {
        headers.add(Map.entry(name, String.valueOf(value)));
        return this;
    }

    public int status() {
        return status;
    }

    public List<Map.Entry<String, String>> headers() {
        return headers;
    }

    public Object body() {
        return body;
    }
}
