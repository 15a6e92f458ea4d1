package fre.bootstrap;

import fre.Context;
import fre.Event;
import fre.Logger;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** One event, from INVOKE to the last frame of its answer. */
final class Call implements Context, Logger {
    private static final int FULL_WINDOW = 256 << 10;
    private static final int GRANT = 128 << 10; // bytes of a request's body taken before the window is opened again

    final Channel channel;
    final long number;
    private final Map<String, Object> meta;
    private byte[] body;
    private ByteArrayOutputStream parts; // of a body that comes in several frames
    private int taken; // bytes of DATA since the last grant
    private boolean discarded; // the body, what is to come of it included

    // Guarded by this.
    private long window = FULL_WINDOW; // bytes of the answer that may be sent
    private boolean cancelled;
    private Thread thread; // runs the handler

    Call(Channel channel, long number, Map<String, Object> meta, byte[] body, boolean more) {
        this.channel = channel;
        this.number = number;
        this.meta = meta;
        if (more) {
            parts = new ByteArrayOutputStream(2 * FULL_WINDOW);
            parts.writeBytes(body);
        } else {
            this.body = body;
        }
    }

    /** Takes DATA and says whether the body is whole now. */
    boolean take(byte[] data, boolean more) {
        if (discarded) {
            return false; // it crossed CANCEL
        }
        if (parts == null) {
            throw Channel.die("DATA after a body's end");
        }
        parts.writeBytes(data);
        taken += data.length;
        if (!more) {
            body = parts.toByteArray();
            parts = null;
        } else if (taken >= GRANT) {
            channel.send(Channel.WINDOW, 0, number, new byte[] {
                (byte) taken, (byte) (taken >> 8), (byte) (taken >> 16), (byte) (taken >> 24)});
            taken = 0;
        }
        return !more;
    }

    /** Drops a body that has not come whole, if it is that. Called by the thread that takes frames, as take is. */
    boolean discard() {
        if (parts == null) {
            return false;
        }
        parts = null;
        return discarded = true;
    }

    Event event() {
        List<Map.Entry<String, String>> headers = new ArrayList<>();
        if (meta.get("headers") instanceof List<?> list) {
            for (Object pair : list) {
                if (pair instanceof List<?> p && p.size() == 2) {
                    headers.add(Map.entry(String.valueOf(p.get(0)), String.valueOf(p.get(1))));
                }
            }
        }
        return new Event(string("method"), string("path"), string("query"), headers, body);
    }

    private String string(String name) {
        return meta.get(name) instanceof String s ? s : "";
    }

    @Override
    public String function() {
        return string("function");
    }

    @Override
    public String id() {
        return string("id");
    }

    @Override
    public String tenant() {
        return string("tenant");
    }

    @Override
    public long deadline() {
        return meta.get("deadline_ms") instanceof Number n ? n.longValue() : 0;
    }

    @Override
    public Logger logger() {
        return this;
    }

    @Override
    public void log(String level, String message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("level", level);
        line.put("message", Failure.cut(message, Channel.MAX_META - 64));
        channel.send(Channel.LOG, 0, number, Channel.json(line));
    }

    @Override
    public synchronized boolean cancelled() {
        return cancelled;
    }

    /** Nobody wants the answer any more. */
    synchronized void cancel() {
        cancelled = true;
        if (thread != null) {
            thread.interrupt();
        }
        notifyAll();
    }

    synchronized void grant(int bytes) {
        window += Integer.toUnsignedLong(bytes);
        notifyAll();
    }

    /** The thread that answers begins; false: nobody wants the answer any more. */
    synchronized boolean begin() {
        thread = Thread.currentThread();
        return !cancelled;
    }

    /** After it no interruption comes. */
    synchronized void end() {
        thread = null;
        Thread.interrupted();
    }

    /** Sends a piece of the body as the window allows. False: nobody wants it any more. */
    boolean data(byte[] data, int at) {
        while (at < data.length) {
            int n;
            synchronized (this) {
                while (window == 0 && !cancelled) {
                    try {
                        wait();
                    } catch (InterruptedException e) {
                        if (!cancelled) { // the handler's own doing
                            continue;
                        }
                    }
                }
                if (cancelled) {
                    return false;
                }
                n = (int) Math.min(Math.min(window, FULL_WINDOW), data.length - at);
                window -= n;
            }
            channel.send(Channel.DATA, Channel.MORE, number, data, at, n, null);
            at += n;
        }
        return !cancelled();
    }
}
