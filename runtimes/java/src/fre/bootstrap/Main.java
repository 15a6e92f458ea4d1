package fre.bootstrap;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * FRE's Java bootstrap: loads the handler and speaks the channel protocol
 * (docs/protocol.md) on file descriptor 3.
 *
 * <pre>
 * java -jar fre.jar Class.method
 * java -jar fre.jar               parks: the engine names the function later
 * java -Dfre.train=true -jar fre.jar   loads what a parked one does, and ends
 * </pre>
 */
public final class Main {
    private final Channel channel;
    private final Map<Long, Call> calls = new HashMap<>(); // guarded by this
    private final ArrayDeque<Call> queue = new ArrayDeque<>(); // whole, not begun; guarded by itself
    private int idle, threads; // of those that handle events; guarded by queue
    private int concurrency = 1;
    private boolean stopping; // guarded by this
    private boolean finished; // no event will come, and the process goes on; guarded by queue
    private volatile Handler handler;
    private URLClassLoader loader;

    Main(Channel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        if (Boolean.getBoolean("fre.train")) {
            Warm.up();
            Environment.prepare();
            return;
        }
        String fd = System.getenv("FRE_CHANNEL");
        Main m = new Main(Channel.of(fd == null ? 3 : Integer.parseInt(fd)));
        String name = args.length > 0 ? args[0] : m.park();
        m.load(name, System.getenv());
        m.read();
        halt(0); // the engine has gone
    }

    private static void halt(int status) {
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(status);
    }

    /** Where the bootstrap's files are. */
    static File home() {
        return new File(System.getProperty("java.class.path")).getAbsoluteFile().getParentFile();
    }

    // --- The function ---

    /** Loads the function and says READY, or FAILED and ends the process. */
    void load(String name, Map<String, String> env) {
        try {
            String dir = env.getOrDefault("FRE_FUNCTION_DIR", "/function");
            List<URL> path = classPath(dir, dir + "/lib", "/opt/java");
            loader = new URLClassLoader("function", path.toArray(new URL[0]), Main.class.getClassLoader());
            Thread.currentThread().setContextClassLoader(loader);
            handler = new Handler(loader, name);
            concurrency = Math.max(1, Integer.parseInt(env.getOrDefault("FRE_CONCURRENCY", "1")));
        } catch (Throwable t) {
            channel.send(Channel.FAILED, 0, 0, Failure.of(t));
            halt(1);
        }
        Map<String, Object> ready = new LinkedHashMap<>();
        ready.put("protocol", 1);
        ready.put("runtime", "java " + System.getProperty("java.version"));
        ready.put("concurrency", concurrency);
        channel.send(Channel.READY, 0, 0, Channel.json(ready));
    }

    /** The first directory, for classes, and the jars of all, in the order of their names. */
    private static List<URL> classPath(String... dirs) throws Exception {
        List<URL> path = new ArrayList<>();
        path.add(new File(dirs[0]).toURI().toURL());
        for (String dir : dirs) {
            String[] names = new File(dir).list();
            if (names == null) {
                continue; // there is none
            }
            Arrays.sort(names);
            for (String name : names) {
                if (name.endsWith(".jar")) {
                    path.add(new File(dir, name).toURI().toURL());
                }
            }
        }
        return path;
    }

    // --- Events ---

    /** Takes frames until the engine has gone. */
    void read() {
        for (Channel.Frame f = channel.read(false); f != null; f = channel.read(false)) {
            switch (f.kind()) {
                case Channel.INVOKE -> invoke(f);
                case Channel.STOP -> stop();
                default -> {
                    Call call;
                    synchronized (this) {
                        call = calls.get(f.id());
                    }
                    if (call != null) { // else it crossed the end of its answer
                        take(call, f);
                    }
                }
            }
        }
    }

    private void invoke(Channel.Frame f) {
        int length = f.payload().length, n = length < 4 ? -1 : f.buffer().getInt();
        if (n < 0 || n > length - 4 || n > Channel.MAX_META || f.id() == 0) {
            throw Channel.die("INVOKE");
        }
        Map<String, Object> meta = Channel.decode(f.payload(), 4, n);
        Call call = new Call(channel, f.id(), meta, Arrays.copyOfRange(f.payload(), 4 + n, length), f.more());
        synchronized (this) {
            if (calls.put(f.id(), call) != null) {
                throw Channel.die("INVOKE");
            }
        }
        if (!f.more()) {
            enqueue(call);
        }
    }

    private void take(Call call, Channel.Frame f) {
        if (f.kind() == Channel.DATA) {
            if (call.take(f.payload(), f.more())) {
                enqueue(call);
            }
        } else if (f.kind() == Channel.CANCEL) {
            call.cancel();
            if (call.discard()) {
                enqueue(call); // for its end
            }
        } else {
            if (f.payload().length != 4) {
                throw Channel.die("WINDOW");
            }
            call.grant(f.buffer().getInt());
        }
    }

    private void enqueue(Call call) {
        synchronized (queue) {
            queue.add(call);
            if (idle >= queue.size() || threads >= concurrency) {
                queue.notify();
                return;
            }
            threads++;
        }
        Thread t = new Thread(this::work, "handler-" + threads);
        t.setDaemon(true);
        t.setContextClassLoader(Thread.currentThread().getContextClassLoader());
        t.start();
    }

    private void work() {
        for (;;) {
            Call call;
            synchronized (queue) {
                idle++;
                while (queue.isEmpty()) {
                    if (finished) {
                        return;
                    }
                    try {
                        queue.wait();
                    } catch (InterruptedException e) {
                        // meant for an event that is over
                    }
                }
                idle--;
                call = queue.remove();
            }
            handle(call);
        }
    }

    private void handle(Call call) {
        byte[] failure = null;
        try {
            if (!call.begin()) {
                throw new Answer.Cancelled();
            }
            Answer.send(call, handler.call(call.event(), call));
        } catch (Answer.Cancelled e) {
            failure = Failure.of("Cancelled", e.getMessage(), "");
        } catch (Throwable t) {
            failure = Failure.of(t);
        }
        call.end();
        System.out.flush();
        if (failure != null) {
            channel.send(Channel.ERROR, 0, call.number, failure);
        }
        synchronized (this) {
            calls.remove(call.number);
            notifyAll(); // finish
            if (!stopping || !calls.isEmpty()) {
                return;
            }
        }
        System.exit(0);
    }

    /** Waits until everything is answered, and lets go of the function. */
    void finish() throws Exception {
        synchronized (this) {
            while (!calls.isEmpty()) {
                wait();
            }
        }
        synchronized (queue) {
            finished = true;
            queue.notifyAll();
        }
        loader.close();
    }

    private void stop() {
        synchronized (this) {
            stopping = true;
            if (!calls.isEmpty()) {
                return;
            }
        }
        System.exit(0);
    }

    // --- Parking ---

    /** Waits for a function, becomes its process, and returns its handler's name. */
    private String park() throws Exception {
        Warm.up();
        Environment.prepare();
        System.gc();
        channel.send(Channel.PARKED, 0, 0, new byte[0]);
        Channel.Frame f = channel.read(true);
        if (f == null) {
            halt(0);
        }
        Map<String, Object> load = Channel.decode(f.payload(), 0, f.payload().length);
        if (f.id() != 0 || !(load.get("handler") instanceof String name) || !(load.get("dir") instanceof String dir)
            || !(load.get("env") instanceof Map<?, ?> env)) {
            throw Channel.die("LOAD");
        }
        Environment.set(dir, env);
        return name;
    }
}
