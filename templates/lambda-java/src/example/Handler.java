package example;

import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.LambdaLogger;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.util.Map;

/** As AWS's guide has it (docs.aws.amazon.com/lambda/latest/dg/java-handler.html). */
public class Handler implements RequestHandler<Map<String, Integer>, Map<String, Integer>> {
    @Override
    public Map<String, Integer> handleRequest(Map<String, Integer> event, Context context) {
        LambdaLogger logger = context.getLogger();
        logger.log("processed " + context.getAwsRequestId());
        if (event.get("length") < 0) {
            throw new IllegalArgumentException("a length below zero");
        }
        return Map.of("area", event.get("length") * event.get("width"));
    }
}
