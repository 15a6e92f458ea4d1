"""Connects to the NAME PORT of an event's body, and answers what is said there."""

import socket


def handle(event, context):
    name, port = event.body.decode().split()
    try:
        with socket.create_connection((name, int(port)), timeout=15) as c:
            return c.recv(100).decode().strip()
    except OSError as e:
        return 502, {}, f"{type(e).__name__}: {e}"
