package fre.bootstrap;

import fre.Logger;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Runs what functions run through, while there is time. */
final class Warm {
    private static final int FUNCTIONS = Integer.getInteger("fre.warm", 30), EVENTS = 20;

    private Warm() {}

    /** Loads functions of our own from the directory and the jar beside the bootstrap's, and has them handle events. */
    static void up() throws Exception {
        ClassLoader before = Thread.currentThread().getContextClassLoader();
        String dir = Main.home() + "/warm";
        for (int n = 0; n < FUNCTIONS; n++) {
            String handler = "Warm." + new String[] {"handle", "text", "map"}[n % 3];
            ByteArrayOutputStream in = new ByteArrayOutputStream();
            for (int id = 1; id <= EVENTS; id++) {
                in.writeBytes(invoke(id));
            }
            Main m = new Main(new Channel(new ByteArrayInputStream(in.toByteArray()), OutputStream.nullOutputStream()));
            m.load(handler, Map.of("FRE_FUNCTION_DIR", dir));
            m.read();
            m.finish();
        }
        Logger log = (level, message) -> Failure.of(level, message, "");
        log.info("%s %d", "a", 1);
        Thread.currentThread().setContextClassLoader(before);
    }

    private static byte[] invoke(long id) {
        byte[] meta = ("{\"function\":\"f\",\"id\":\"i\",\"tenant\":\"t\",\"deadline_ms\":1,\"method\":\"POST\",\"path\":\"/\","
            + "\"query\":\"a=%20b&c\",\"headers\":[[\"a\",\"b\"],[\"C\",\"\\\"d\"]]}").getBytes(StandardCharsets.UTF_8);
        byte[] body = "{\"a\":[1,2.5,\"\\n\",true,null]}".getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(16 + 4 + meta.length + body.length).order(ByteOrder.LITTLE_ENDIAN)
            .putInt(4 + meta.length + body.length).put((byte) Channel.INVOKE).put((byte) 0).putShort((short) 0).putLong(id)
            .putInt(meta.length).put(meta).put(body).array();
    }
}
