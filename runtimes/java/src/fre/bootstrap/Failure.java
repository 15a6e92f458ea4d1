package fre.bootstrap;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** What was thrown, as FAILED and ERROR carry it. */
final class Failure {
    private static final int MAX_TYPE = 1024, MAX_MESSAGE = 64 << 10, MAX_STACK = 128 << 10;

    private Failure() {}

    /** Takes what was thrown apart: its class, its message, its stack without the bootstrap's frames. The stack goes to stderr, too. */
    static byte[] of(Throwable t) {
        if (t instanceof InvocationTargetException && t.getCause() != null) {
            t = t.getCause();
        }
        String type = t.getClass().getName(), message = "", stack = "";
        try {
            trim(t, Collections.newSetFromMap(new IdentityHashMap<>()));
            message = String.valueOf(t.getMessage() == null ? "" : t.getMessage());
            StringWriter w = new StringWriter();
            t.printStackTrace(new PrintWriter(w));
            stack = w.toString();
        } catch (Throwable inIt) { // a method of what was thrown threw
            stack = type + ": its own methods throw " + inIt.getClass().getName() + "\n";
        }
        System.err.print(stack);
        System.err.flush();
        return of(type, message, stack);
    }

    static byte[] of(String type, String message, String stack) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("type", cut(type, MAX_TYPE));
        m.put("message", cut(message, MAX_MESSAGE));
        m.put("stack", cut(stack, MAX_STACK));
        return Channel.json(m);
    }

    /** Drops the frames of the bootstrap, and of the reflection it calls handlers by. */
    private static void trim(Throwable t, Set<Throwable> seen) {
        if (t == null || !seen.add(t)) {
            return;
        }
        List<StackTraceElement> kept = new ArrayList<>();
        boolean reflection = true; // from below: what is between the bootstrap and the handler
        StackTraceElement[] all = t.getStackTrace();
        for (int i = all.length - 1; i >= 0; i--) {
            String c = all[i].getClassName();
            boolean ours = c.startsWith("fre.bootstrap.");
            reflection |= ours;
            if (ours || reflection && (c.startsWith("jdk.internal.reflect.") || c.startsWith("java.lang.reflect.")
                || c.startsWith("java.lang.invoke.") || c.equals("java.lang.Thread") || c.equals("java.lang.Class"))) {
                continue;
            }
            reflection = false;
            kept.add(all[i]);
        }
        Collections.reverse(kept);
        t.setStackTrace(kept.toArray(new StackTraceElement[0]));
        trim(t.getCause(), seen);
        for (Throwable s : t.getSuppressed()) {
            trim(s, seen);
        }
    }

    /** Shortens text so that its JSON stays within limit bytes: a character takes at most six. */
    static String cut(String text, int limit) {
        String kept = text;
        while (kept.length() * 6L > limit - 8 && Channel.json(kept).length > limit - 8) {
            kept = kept.substring(0, kept.length() / 2);
        }
        return kept.length() == text.length() ? text : kept + "...";
    }
}
