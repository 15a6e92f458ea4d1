package fre.bootstrap;

import fre.Json;
import java.io.BufferedInputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.reflect.Constructor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Frames, as docs/protocol.md describes them. Sending is safe for several threads. */
final class Channel {
    static final int READY = 1, FAILED = 2, INVOKE = 3, RESPONSE = 4, DATA = 5, ERROR = 6, CANCEL = 7,
        WINDOW = 8, LOG = 9, STOP = 10, PARKED = 11, LOAD = 12, FILE = 0x21;
    static final int MORE = 1;
    static final int MAX_META = 256 << 10;
    private static final int HEAD = 16;
    private static final int MAX_PAYLOAD = 1 << 20;
    private static final int EXIT_PROTOCOL = 70; // EX_SOFTWARE of sysexits.h

    private final InputStream in;
    private final OutputStream out;

    Channel(InputStream in, OutputStream out) {
        this.in = new BufferedInputStream(in, 16 << 10);
        this.out = out;
    }

    /**
     * The channel on a descriptor that the process was started with. A FileInputStream reads
     * any descriptor by read(2); what Java lacks is a public way to name one. Its class is
     * opened to this jar by Add-Opens in the manifest. Children do not get the
     * descriptor: Java closes all but three before it starts one.
     */
    static Channel of(int fd) throws ReflectiveOperationException {
        Constructor<FileDescriptor> c = FileDescriptor.class.getDeclaredConstructor(int.class);
        c.setAccessible(true);
        FileDescriptor d = c.newInstance(fd);
        return new Channel(new FileInputStream(d), new FileOutputStream(d));
    }

    record Frame(int kind, boolean more, long id, byte[] payload) {
        ByteBuffer buffer() {
            return ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN);
        }
    }

    /** The next frame; null when the engine has gone. */
    Frame read(boolean parked) {
        try {
            byte[] raw = in.readNBytes(HEAD);
            if (raw.length < HEAD) {
                return null;
            }
            ByteBuffer h = ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN);
            int length = h.getInt(), kind = h.get(), flags = h.get();
            short fds = h.getShort();
            if (length < 0 || length > MAX_PAYLOAD) {
                throw die("frame of " + Integer.toUnsignedString(length) + " bytes");
            }
            boolean body = kind == INVOKE || kind == DATA;
            if (parked ? kind != LOAD : !body && kind != CANCEL && kind != WINDOW && kind != STOP) {
                throw die("frame kind " + kind);
            }
            if (fds != 0 || (flags & ~MORE) != 0 || flags != 0 && !body) {
                throw die("flags or file descriptors of frame kind " + kind);
            }
            byte[] payload = in.readNBytes(length);
            return payload.length < length ? null : new Frame(kind, flags != 0, h.getLong(), payload);
        } catch (IOException e) {
            return null;
        }
    }

    void send(int kind, int flags, long id, byte[] payload) {
        send(kind, flags, id, payload, 0, payload.length, null);
    }

    /** Sends one frame: before, where there is any, and length bytes of data from at. */
    void send(int kind, int flags, long id, byte[] data, int at, int length, byte[] before) {
        int first = before == null ? 0 : before.length;
        ByteBuffer b = ByteBuffer.allocate(HEAD + first + length).order(ByteOrder.LITTLE_ENDIAN)
            .putInt(first + length).put((byte) kind).put((byte) flags).putShort((short) 0).putLong(id);
        if (first > 0) {
            b.put(before);
        }
        b.put(data, at, length);
        synchronized (out) {
            try {
                out.write(b.array());
            } catch (IOException e) { // the engine has gone
                Runtime.getRuntime().halt(0);
            }
        }
    }

    static byte[] json(Object v) {
        return Json.write(v).getBytes(StandardCharsets.UTF_8);
    }

    /** The object that JSON from the engine holds. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> decode(byte[] b, int at, int length) {
        try {
            return (Map<String, Object>) Json.parse(new String(b, at, length, StandardCharsets.UTF_8));
        } catch (IllegalArgumentException | ClassCastException e) {
            throw die("metadata");
        }
    }

    /** Ends the process: the engine does not keep to the protocol. */
    static Error die(String why) {
        System.err.println("fre: the engine broke the channel protocol: " + why);
        System.err.flush();
        Runtime.getRuntime().halt(EXIT_PROTOCOL);
        return new Error(why);
    }
}
