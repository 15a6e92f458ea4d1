import logging

logger = logging.getLogger()
logger.setLevel("INFO")


def lambda_handler(event, context):
    logger.info("request %s", context.aws_request_id)
    return {"area": event["length"] * event["width"], "in_time": context.get_remaining_time_in_millis() > 0}
