import time


def handle(event, context):
    time.sleep(0.005)
    return b"done"
