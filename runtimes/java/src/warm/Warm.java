import fre.Context;
import fre.Event;
import fre.Json;
import fre.Response;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The function that a parked bootstrap runs, so that what functions run through is loaded when theirs comes. */
public class Warm {
    public Response handle(Event event, Context context) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("query", event.query());
        body.put("json", event.json());
        body.put("left", context.remaining());
        body.put("path", Part.of(event));
        return new Response(200, body).header("a", event.headers().get("A"));
    }

    public static String text(String text, Context context) {
        return text + context.id();
    }

    public Map<String, Object> map(Map<String, Object> event) {
        return Map.of("list", List.of(Json.write(event)));
    }
}
