import json
import logging

logger = logging.getLogger()
logger.setLevel(logging.INFO)


def lambda_handler(event, context):
    logger.info("request %s", context.aws_request_id)
    length = event["length"]
    width = event["width"]
    return {
        "area": length * width,
        "function": context.invoked_function_arn.rpartition(":")[2],
        "in_time": context.get_remaining_time_in_millis() > 0,
        "memory": context.memory_limit_in_mb,
        "event": json.dumps(event, sort_keys=True),
    }
