"""The functions that the conformance client asks for: each writes what it was given."""

import json

import functions_framework
from cloudevents.http import to_json


class Message:
    """The parameter of a typed function."""

    def __init__(self, value):
        self.value = value

    @staticmethod
    def from_dict(value):
        return Message(value)

    def to_dict(self):
        return {"payload": self.value}


def write(text):
    with open("/work/function_output.json", "w") as f:
        f.write(text)


def http(request):
    write(json.dumps(request.get_json()))
    return "OK"


def cloudevent(event):
    write(to_json(event).decode())


def legacyevent(data, context):
    write(json.dumps({"data": data, "context": {
        "eventId": context.event_id, "timestamp": context.timestamp, "eventType": context.event_type, "resource": context.resource}}))


@functions_framework.typed(Message)
def typed(message):
    return message
