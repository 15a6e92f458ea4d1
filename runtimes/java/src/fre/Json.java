package fre;

import java.lang.reflect.Array;
import java.lang.reflect.RecordComponent;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON (RFC 8259) without a dependency. Objects are LinkedHashMaps, arrays
 * ArrayLists, integers Long or, beyond it, BigInteger, other numbers Double.
 */
public final class Json {
    /** How deep arrays and objects may nest. */
    public static final int MAX_DEPTH = 512;
    private static final int MAX_NUMBER = 1000; // characters: BigInteger takes quadratic time

    private final String s;
    private int at;

    private Json(String s) {
        this.s = s;
    }

    /** Returns the one value that text holds. Anything else is an IllegalArgumentException, which says where. */
    public static Object parse(String text) {
        Json j = new Json(text);
        Object v = j.value(0);
        j.space();
        if (j.at < text.length()) {
            throw j.bad("unexpected " + j.here());
        }
        return v;
    }

    private IllegalArgumentException bad(String why) {
        return new IllegalArgumentException("no JSON: " + why + " at character " + at);
    }

    private String here() {
        if (at >= s.length()) {
            return "end";
        }
        char c = s.charAt(at);
        return c < ' ' || c > '~' ? String.format("\\u%04x", (int) c) : "'" + c + "'";
    }

    private void space() {
        for (; at < s.length(); at++) {
            char c = s.charAt(at);
            if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
                return;
            }
        }
    }

    private char peek() {
        space();
        if (at >= s.length()) {
            throw bad("unexpected end");
        }
        return s.charAt(at);
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw bad("nested deeper than " + MAX_DEPTH);
        }
        switch (peek()) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Object word(String word, Object value) {
        if (!s.startsWith(word, at)) {
            throw bad("unexpected " + here());
        }
        at += word.length();
        return value;
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> m = new LinkedHashMap<>();
        at++;
        if (peek() == '}') {
            at++;
            return m;
        }
        for (;;) {
            if (peek() != '"') {
                throw bad("unexpected " + here());
            }
            String name = string();
            if (peek() != ':') {
                throw bad("unexpected " + here());
            }
            at++;
            m.put(name, value(depth + 1));
            if (end('}')) {
                return m;
            }
        }
    }

    private List<Object> array(int depth) {
        List<Object> l = new ArrayList<>();
        at++;
        if (peek() == ']') {
            at++;
            return l;
        }
        for (;;) {
            l.add(value(depth + 1));
            if (end(']')) {
                return l;
            }
        }
    }

    private boolean end(char closing) {
        char c = peek();
        if (c != ',' && c != closing) {
            throw bad("unexpected " + here());
        }
        at++;
        return c == closing;
    }

    private String string() {
        int start = ++at;
        StringBuilder b = null;
        for (; at < s.length(); at++) {
            char c = s.charAt(at);
            if (c == '"') {
                String text = b == null ? s.substring(start, at) : b.append(s, start, at).toString();
                at++;
                return text;
            }
            if (c < ' ') {
                throw bad("unexpected " + here());
            }
            if (c == '\\') {
                if (b == null) {
                    b = new StringBuilder();
                }
                b.append(s, start, at++);
                b.append(escape());
                start = at + 1;
            }
        }
        throw bad("unexpected end");
    }

    private char escape() {
        if (at >= s.length()) {
            throw bad("unexpected end");
        }
        char c = s.charAt(at);
        switch (c) {
            case '"', '\\', '/':
                return c;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                int v = 0;
                for (int i = 0; i < 4; i++) {
                    if (++at >= s.length()) {
                        throw bad("unexpected end");
                    }
                    int digit = hex(s.charAt(at));
                    if (digit < 0) {
                        throw bad("unexpected " + here());
                    }
                    v = v << 4 | digit;
                }
                return (char) v;
            default:
                throw bad("unexpected " + here());
        }
    }

    private static int hex(char c) {
        if (c >= '0' && c <= '9') {
            return c - '0';
        }
        c |= 0x20;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    }

    private void digits() {
        int start = at;
        while (at < s.length() && s.charAt(at) >= '0' && s.charAt(at) <= '9') {
            at++;
        }
        if (at == start) {
            throw bad("unexpected " + here());
        }
    }

    private Number number() {
        int start = at;
        if (s.charAt(at) == '-') {
            at++;
        }
        if (at < s.length() && s.charAt(at) == '0') {
            at++;
        } else {
            digits();
        }
        boolean whole = true;
        if (at < s.length() && s.charAt(at) == '.') {
            whole = false;
            at++;
            digits();
        }
        if (at < s.length() && (s.charAt(at) | 0x20) == 'e') {
            whole = false;
            at++;
            if (at < s.length() && (s.charAt(at) == '+' || s.charAt(at) == '-')) {
                at++;
            }
            digits();
        }
        if (at - start > MAX_NUMBER) {
            throw bad("a number of more than " + MAX_NUMBER + " characters");
        }
        String text = s.substring(start, at);
        if (whole) {
            return text.length() < 19 ? Long.valueOf(Long.parseLong(text)) : small(new BigInteger(text));
        }
        double d = Double.parseDouble(text);
        if (Double.isInfinite(d)) {
            throw bad("a number beyond double precision");
        }
        return d;
    }

    private static Number small(BigInteger n) {
        return n.bitLength() < 64 ? Long.valueOf(n.longValue()) : n;
    }

    /**
     * Returns the JSON of a value: null, Boolean, Number, CharSequence, Character, Enum, Map, Iterable,
     * array, record, of such. Anything else, a number that is none, or a nesting that does not
     * end, is an IllegalArgumentException.
     */
    public static String write(Object value) {
        StringBuilder b = new StringBuilder();
        write(b, value, 0);
        return b.toString();
    }

    private static void write(StringBuilder b, Object v, int depth) {
        if (depth > MAX_DEPTH) {
            throw new IllegalArgumentException("nested deeper than " + MAX_DEPTH);
        }
        if (v == null || v instanceof Boolean) {
            b.append(v);
        } else if (v instanceof CharSequence || v instanceof Character || v instanceof Enum<?>) {
            quote(b, v instanceof Enum<?> e ? e.name() : v.toString());
        } else if (v instanceof Number n) {
            if (n instanceof Double d && !Double.isFinite(d) || n instanceof Float f && !Float.isFinite(f)) {
                throw new IllegalArgumentException(n + " is no number in JSON");
            }
            b.append(n);
        } else if (v instanceof Map<?, ?> m) {
            char before = '{';
            for (Map.Entry<?, ?> e : m.entrySet()) {
                member(b, before, e.getKey(), e.getValue(), depth);
                before = ',';
            }
            b.append(before == '{' ? "{}" : "}");
        } else if (v instanceof Iterable<?> l) {
            char before = '[';
            for (Object e : l) {
                b.append(before);
                write(b, e, depth + 1);
                before = ',';
            }
            b.append(before == '[' ? "[]" : "]");
        } else if (v.getClass().isArray()) {
            b.append('[');
            for (int i = 0; i < Array.getLength(v); i++) {
                if (i > 0) {
                    b.append(',');
                }
                write(b, Array.get(v, i), depth + 1);
            }
            b.append(']');
        } else if (v.getClass().isRecord()) {
            char before = '{';
            for (RecordComponent c : v.getClass().getRecordComponents()) {
                member(b, before, c.getName(), component(v, c), depth);
                before = ',';
            }
            b.append(before == '{' ? "{}" : "}");
        } else {
            throw new IllegalArgumentException(v.getClass().getName() + " has no form in JSON");
        }
    }

    private static Object component(Object record, RecordComponent c) {
        try {
            c.getAccessor().setAccessible(true);
            return c.getAccessor().invoke(record);
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException(c.getName() + " cannot be read", e);
        }
    }

    private static void member(StringBuilder b, char before, Object name, Object value, int depth) {
        b.append(before);
        quote(b, String.valueOf(name));
        b.append(':');
        write(b, value, depth + 1);
    }

    private static void quote(StringBuilder b, String s) {
        b.append('"');
        int start = 0;
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c >= ' ' && c != '"' && c != '\\' && !Character.isSurrogate(c)) {
                continue;
            }
            if (Character.isHighSurrogate(c) && i + 1 < s.length() && Character.isLowSurrogate(s.charAt(i + 1))) {
                i++;
                continue;
            }
            b.append(s, start, i);
            start = i + 1;
            switch (c) {
                case '"' -> b.append("\\\"");
                case '\\' -> b.append("\\\\");
                case '\n' -> b.append("\\n");
                case '\r' -> b.append("\\r");
                case '\t' -> b.append("\\t");
                default -> { // a control character, or half of a pair, which UTF-8 does not have
                    b.append("\\u");
                    for (int shift = 12; shift >= 0; shift -= 4) {
                        b.append("0123456789abcdef".charAt(c >> shift & 15));
                    }
                }
            }
        }
        b.append(s, start, s.length()).append('"');
    }
}
