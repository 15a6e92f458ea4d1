package fre;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** One request. */
public final class Event {
    private final String method, path, rawQuery;
    private final List<Map.Entry<String, String>> rawHeaders;
    private final byte[] body;
    private Map<String, List<String>> query;
    private Map<String, String> headers;

    /** An event as the engine makes them; tests make their own. rawHeaders are in the order they came. */
    public Event(String method, String path, String rawQuery, List<Map.Entry<String, String>> rawHeaders, byte[] body) {
        this.method = method;
        this.path = path;
        this.rawQuery = rawQuery;
        this.rawHeaders = List.copyOf(rawHeaders);
        this.body = body;
    }

    public String method() {
        return method;
    }

    public String path() {
        return path;
    }

    /** What follows the question mark, as it came. */
    public String rawQuery() {
        return rawQuery;
    }

    /** Parameter name to its values. */
    public Map<String, List<String>> query() {
        if (query == null) {
            Map<String, List<String>> q = new LinkedHashMap<>();
            for (String pair : rawQuery.split("&")) {
                if (!pair.isEmpty()) {
                    int at = pair.indexOf('=');
                    q.computeIfAbsent(decode(at < 0 ? pair : pair.substring(0, at)), n -> new ArrayList<>(1))
                        .add(at < 0 ? "" : decode(pair.substring(at + 1)));
                }
            }
            query = q;
        }
        return query;
    }

    private static String decode(String s) {
        if (s.indexOf('%') < 0) {
            return s.replace('+', ' ');
        }
        try {
            return URLDecoder.decode(s, StandardCharsets.UTF_8);
        } catch (IllegalArgumentException e) { // a percent sign that stands for itself
            return URLDecoder.decode(s.replaceAll("%(?![0-9A-Fa-f]{2})", "%25"), StandardCharsets.UTF_8);
        }
    }

    /** The headers as they came. */
    public List<Map.Entry<String, String>> rawHeaders() {
        return rawHeaders;
    }

    /** The headers by name; look-ups ignore case. Values of a name that came more than once are joined with ", ". */
    public Map<String, String> headers() {
        if (headers == null) {
            Map<String, String> h = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            for (Map.Entry<String, String> e : rawHeaders) {
                h.merge(e.getKey(), e.getValue(), (a, b) -> a + ", " + b);
            }
            headers = h;
        }
        return headers;
    }

    /** The body; the caller may keep and change it. */
    public byte[] body() {
        return body;
    }

    /** The body as UTF-8. */
    public String text() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** The value that the body holds as JSON ({@link Json}). */
    public Object json() {
        return Json.parse(text());
    }
}
