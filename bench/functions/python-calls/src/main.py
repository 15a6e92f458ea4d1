import time


def handle(event, context):
    if event.path != "/measure":
        return event.body
    ask = event.json()
    body = b"x" * ask["bytes"]
    took = []
    for _ in range(ask["calls"]):
        began = time.perf_counter_ns()
        answer = context.call(ask["function"], body)
        took.append(time.perf_counter_ns() - began)
        if answer.status != 200 or len(answer.body) != len(body):
            return 500, {}, "%d, %d bytes" % (answer.status, len(answer.body))
    took.sort()
    return {"p50_us": took[len(took) // 2] / 1000, "p99_us": took[len(took) * 99 // 100] / 1000}
