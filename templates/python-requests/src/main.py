import requests

session = requests.Session()


def handle(event, context):
    url = event.json()["url"]
    try:
        with session.get(url, timeout=5, stream=True) as answer:
            length = len(answer.raw.read(1 << 20))
            return {"status": answer.status_code, "type": answer.headers.get("Content-Type"), "bytes": length}
    except requests.RequestException as error:
        return 502, {"Content-Type": "text/plain"}, f"{type(error).__name__}: {url}\n"
