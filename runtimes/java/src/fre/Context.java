package fre;

/** What the engine says about one event. */
public interface Context {
    /** The function's name. */
    String function();

    /** The event's public name, X-Fre-Id of its answer. */
    String id();

    String tenant();

    /** When the event's time is over, in milliseconds since 1970. */
    long deadline();

    /** Milliseconds until {@link #deadline}. */
    default long remaining() {
        return deadline() - System.currentTimeMillis();
    }

    /** Whether nobody waits for the answer any more. The handler's thread is interrupted then. */
    boolean cancelled();

    Logger logger();
}
