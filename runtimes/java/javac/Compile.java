package fre.bootstrap;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import javax.tools.JavaCompiler;
import javax.tools.ToolProvider;

/**
 * Runs the JDK's compiler in a build step, as javac does.
 *
 * <pre>
 * java -jar javac.jar @FILE              compiles by the arguments in FILE
 * java -jar javac.jar                    parks, warm: the engine names the file later (docs/protocol.md)
 * java -Dfre.train=true -jar javac.jar   loads what a parked one does, and ends
 * </pre>
 */
final class Compile {
    /** Compilations before one is wanted: further ones cost more than they gain. */
    private static final int ROUNDS = Integer.getInteger("fre.warm", 6);

    private Compile() {}

    public static void main(String[] args) throws Exception {
        if (Boolean.getBoolean("fre.train")) {
            warm("src", 1);
            Channel.of(3);
            byte[] load = Channel.json(Map.of("handler", ""));
            Channel.decode(load, 0, load.length);
            return;
        }
        String argument = args.length > 0 ? args[0] : park();
        int status = ToolProvider.getSystemJavaCompiler().run(null, null, null, argument);
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(status); // whatever threads an annotation processor has left
    }

    /** Waits for the argument. */
    private static String park() throws Exception {
        warm("src/warm", ROUNDS);
        System.gc();
        Channel channel = Channel.of(3);
        channel.send(Channel.PARKED, 0, 0, new byte[0]);
        Channel.Frame f = channel.read(true);
        if (f == null) {
            Runtime.getRuntime().halt(0);
        }
        Map<String, Object> load = Channel.decode(f.payload(), 0, f.payload().length);
        if (f.id() != 0 || !(load.get("handler") instanceof String argument)) {
            throw Channel.die("LOAD");
        }
        return argument;
    }

    /** Compiles sources of the bootstrap's, and leaves nothing behind. */
    private static void warm(String name, int rounds) throws IOException {
        JavaCompiler javac = ToolProvider.getSystemJavaCompiler();
        Path home = Main.home().toPath();
        List<String> args = new ArrayList<>(List.of("-encoding", "UTF-8", "-proc:none", "-implicit:none",
            "-cp", home + "/fre.jar", "-sourcepath", home + "/" + name, "-d"));
        int out = args.size();
        try (Stream<Path> sources = Files.walk(home.resolve(name))) {
            sources.map(Path::toString).filter(file -> file.endsWith(".java")).sorted().forEach(args::add);
        }
        for (int n = 0; n < rounds; n++) {
            Path dir = Files.createTempDirectory("warm");
            args.add(out, dir.toString());
            OutputStream words = OutputStream.nullOutputStream();
            if (javac.run(null, words, words, args.toArray(new String[0])) != 0) {
                throw new IOException("the compiler does not compile the bootstrap");
            }
            args.remove(out);
            try (Stream<Path> made = Files.walk(dir)) {
                for (Path p : made.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(p);
                }
            }
        }
    }
}
