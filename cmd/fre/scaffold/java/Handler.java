import fre.Context;
import fre.Event;
import java.util.Map;

public class Handler {
    public Map<String, Object> handle(Event event, Context context) {
        context.logger().info("called with %d bytes", event.body().length);
        return Map.of("hello", "world", "path", event.path());
    }
}
