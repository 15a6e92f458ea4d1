package fre.bootstrap;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TimeZone;

/**
 * The environment and the working directory of the process. Java reads them once, for good;
 * a parked process learns them later.
 */
final class Environment {
    private static Map<Object, Object> all; // what System.getenv and children's environments are views of
    private static Method name, value; // make its keys and values of Strings

    private Environment() {}

    /** Finds what set needs: private members of a class that the jar's manifest opens, and a library beside the jar. */
    @SuppressWarnings("unchecked")
    static void prepare() throws ReflectiveOperationException {
        Class<?> c = Class.forName("java.lang.ProcessEnvironment");
        Field f = c.getDeclaredField("theEnvironment");
        f.setAccessible(true);
        all = (Map<Object, Object>) f.get(null);
        name = Class.forName("java.lang.ProcessEnvironment$Variable").getDeclaredMethod("valueOf", String.class);
        value = Class.forName("java.lang.ProcessEnvironment$Value").getDeclaredMethod("valueOf", String.class);
        name.setAccessible(true);
        value.setAccessible(true);
        System.load(new File(Main.home(), "libfre.so").getAbsolutePath());
    }

    /** Makes env the whole environment and dir the working directory. TZ takes effect as it does at a start. */
    static void set(String dir, Map<?, ?> env) throws ReflectiveOperationException, IOException {
        StringBuilder block = new StringBuilder(dir).append('\0');
        all.clear();
        for (Map.Entry<?, ?> e : env.entrySet()) {
            all.put(name.invoke(null, e.getKey()), value.invoke(null, e.getValue()));
            block.append(e.getKey()).append('=').append(e.getValue()).append('\0');
        }
        byte[] raw = block.append('\0').toString().getBytes(StandardCharsets.UTF_8);
        int errno = enter(ByteBuffer.allocateDirect(raw.length).put(raw));
        if (errno != 0) {
            throw new IOException("enter " + dir + ": errno " + errno);
        }
        TimeZone.setDefault(null); // asks for TZ at its next use
        System.clearProperty("user.timezone");
    }

    private static native int enter(ByteBuffer dirAndEnvironment);
}
