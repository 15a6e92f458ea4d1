import json


def handle(event, context):
    return str(getattr(json, "mine", False))
