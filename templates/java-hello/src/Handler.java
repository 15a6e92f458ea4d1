import fre.Context;
import fre.Event;
import java.util.Map;

public class Handler {
    public Map<String, Object> handle(Event event, Context context) {
        String name = event.text().isEmpty() ? "world" : event.text();
        return Map.of("hello", name, "function", context.function());
    }
}
