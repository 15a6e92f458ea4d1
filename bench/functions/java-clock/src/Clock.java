import fre.Context;
import fre.Event;

public class Clock {
    public String handle(Event event, Context context) {
        return Long.toString(System.nanoTime()); // CLOCK_MONOTONIC
    }

    // The same for a bare JVM.
    public static void main(String[] args) {
        System.out.println(System.nanoTime());
    }
}
