package fre;

/** Log lines of one event. With arguments the message is a format ({@link String#format}). */
public interface Logger {
    void log(String level, String message);

    default void debug(String message, Object... args) {
        log("debug", args.length == 0 ? message : String.format(message, args));
    }

    default void info(String message, Object... args) {
        log("info", args.length == 0 ? message : String.format(message, args));
    }

    default void warning(String message, Object... args) {
        log("warning", args.length == 0 ? message : String.format(message, args));
    }

    default void error(String message, Object... args) {
        log("error", args.length == 0 ? message : String.format(message, args));
    }
}
