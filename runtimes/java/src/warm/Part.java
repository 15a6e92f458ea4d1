import fre.Event;

/** The part of Warm that comes out of a jar. */
final class Part {
    private Part() {}

    static String of(Event event) {
        return event.method() + " " + event.path();
    }
}
