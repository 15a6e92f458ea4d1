"""What people do with boto3, against the engine at LAMBDA_ENDPOINT: each step says what it
expects. TestLambdaAPI runs it; the first step that fails ends it."""

import base64
import io
import json
import os
import sys
import zipfile

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError


def client(key="AWS", **more):
    more.setdefault("region_name", "eu-central-1")
    return boto3.client(
        "lambda",
        endpoint_url=os.environ["LAMBDA_ENDPOINT"],
        aws_access_key_id=os.environ[key + "_ACCESS_KEY_ID"],
        aws_secret_access_key=os.environ[key + "_SECRET_ACCESS_KEY"],
        **{"config": Config(retries={"total_max_attempts": 1}, read_timeout=300), **more},
    )


def packed(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = 0o755 << 16, zipfile.ZIP_DEFLATED
            z.writestr(info, text)
    return out.getvalue()


def equal(got, want):
    assert got == want, "got %r, want %r" % (got, want)


def refused(code, status, call, **args):
    try:
        got = call(**args)
    except ClientError as e:
        equal((e.response["Error"]["Code"], e.response["ResponseMetadata"]["HTTPStatusCode"]), (code, status))
        assert e.response["Error"]["Message"], "the error has no message"
        return e
    raise AssertionError("got %r, want %s" % (got, code))


def modelled(c, code):
    """The error is a class of the client's, which users catch."""
    assert issubclass(getattr(c.exceptions, code), ClientError)


CODE = """
import os, sys, time

def lambda_handler(event, context):
    print("seen", event)
    do = event.get("do")
    if do == "fail":
        raise ValueError("no such luck")
    if do == "sleep":
        time.sleep(60)
    if do == "exit":
        os._exit(3)
    if do == "big":
        return "x" * (6 << 20)
    if do == "write":
        with open("/work/" + event["file"], "w") as f:
            f.write("done")
    if do == "read":
        return os.path.exists("/work/" + event["file"])
    client = context.client_context.custom if context.client_context else None
    return {"event": event, "answer": %(answer)r, "color": os.environ.get("COLOR"), "custom": client, "name": context.function_name, "memory": context.memory_limit_in_mb, "version": context.function_version, "arn": context.invoked_function_arn}
"""


def code(answer="one"):
    # As with AWS, a list of packages in the zip asks for none.
    return packed({"lambda_function.py": CODE % {"answer": answer}, "requirements.txt": "no-such-distribution-of-fre==1\n"})


def invoke(c, **args):
    r = c.invoke(FunctionName=args.pop("name", "greet"), **args)
    return r, json.loads(r["Payload"].read() or b"null")


c = client()
steps = []


def step(f):
    steps.append(f)
    return f


@step
def create():
    r = c.create_function(
        FunctionName="greet", Runtime="python3.12", Role="arn:aws:iam::000000000000:role/any", Handler="lambda_function.lambda_handler",
        Code={"ZipFile": code()}, Timeout=5, MemorySize=192, Description="says hello", Environment={"Variables": {"COLOR": "red ☃ \"quoted\"\n#"}},
    )
    equal((r["FunctionArn"].split(":")[3:], r["Version"], r["Runtime"], r["Timeout"], r["MemorySize"]), (["eu-central-1", ACCOUNT, "function", "greet"], "$LATEST", "python3.12", 5, 192))
    c.get_waiter("function_active_v2").wait(FunctionName="greet")
    refused("ResourceConflictException", 409, c.create_function, FunctionName="greet", Runtime="python3.12", Role="arn:aws:iam::000000000000:role/any", Handler="a.b", Code={"ZipFile": code()})
    modelled(c, "ResourceConflictException")
    global ARN
    ARN = r["FunctionArn"]


@step
def call():
    r, out = invoke(c, Payload=json.dumps({"n": 1}))
    equal((r["StatusCode"], r["ExecutedVersion"], r.get("FunctionError")), (200, "$LATEST", None))
    equal(out, {"event": {"n": 1}, "answer": "one", "color": "red ☃ \"quoted\"\n#", "custom": None, "name": "greet", "memory": "192", "version": "$LATEST", "arn": "arn:aws:lambda:us-east-1:000000000000:function:greet"})
    for name in (ARN, ARN + ":$LATEST", "function:greet", ACCOUNT + ":function:greet"):
        equal(invoke(c, name=name)[1]["event"], {})
    context = base64.b64encode(json.dumps({"custom": {"who": "me"}}).encode()).decode()
    equal(invoke(c, ClientContext=context)[1]["custom"], {"who": "me"})
    equal(c.invoke(FunctionName="greet", InvocationType="DryRun")["StatusCode"], 204)


@step
def failures():
    r, out = invoke(c, Payload=json.dumps({"do": "fail"}))
    equal((r["StatusCode"], r["FunctionError"], out["errorType"], out["errorMessage"]), (200, "Unhandled", "ValueError", "no such luck"))
    r, out = invoke(c, Payload=json.dumps({"do": "exit"}))
    equal((r["FunctionError"], out["errorType"]), ("Unhandled", "Runtime.ExitError"))
    r, out = invoke(c, Payload=json.dumps({"do": "big"}))
    equal((r["FunctionError"], out["errorType"]), ("Unhandled", "Function.ResponseSizeTooLarge"))
    refused("InvalidRequestContentException", 400, c.invoke, FunctionName="greet", Payload=b"{no json")
    refused("RequestTooLargeException", 413, c.invoke, FunctionName="greet", Payload=json.dumps("x" * (6 << 20)))
    refused("RequestTooLargeException", 413, c.invoke, FunctionName="greet", InvocationType="Event", Payload=json.dumps("x" * (1 << 20)))
    refused("ResourceNotFoundException", 404, c.invoke, FunctionName="nobody")
    refused("ResourceNotFoundException", 404, c.invoke, FunctionName="greet", Qualifier="7")
    refused("ResourceNotFoundException", 404, c.get_function, FunctionName="arn:aws:lambda:eu-central-1:123456789012:function:greet")
    refused("InvalidParameterValueException", 400, c.get_function, FunctionName="Has_Capitals")
    modelled(c, "ResourceNotFoundException")


@step
def log():
    for _ in range(20):  # the line comes by a pipe of its own
        r = c.invoke(FunctionName="greet", LogType="Tail", Payload=json.dumps({"line": 4711}))
        text = base64.b64decode(r["LogResult"]).decode()
        if "seen {'line': 4711}" in text:
            break
    else:
        raise AssertionError("no line in " + text)
    id = r["ResponseMetadata"]["RequestId"]
    assert text.startswith("START RequestId: %s Version: $LATEST\n" % id) and "\nREPORT RequestId: %s\t" % id in text, text
    equal(c.invoke(FunctionName="greet").get("LogResult"), None)


@step
def asynchronous():
    r = c.invoke(FunctionName="greet", InvocationType="Event", Payload=json.dumps({"do": "write", "file": "later"}))
    equal((r["StatusCode"], r["Payload"].read()), (202, b""))
    for _ in range(600):
        if invoke(c, Payload=json.dumps({"do": "read", "file": "later"}))[1]:
            break
    else:
        raise AssertionError("the event has not run")


@step
def stream():
    r = c.invoke_with_response_stream(FunctionName="greet", Payload=json.dumps({"n": 2}), LogType="Tail")
    chunks, ends = [], []
    for event in r["EventStream"]:
        if "PayloadChunk" in event:
            chunks.append(event["PayloadChunk"]["Payload"])
        else:
            ends.append(event["InvokeComplete"])
    equal(json.loads(b"".join(chunks))["event"], {"n": 2})
    equal(len(ends), 1)
    assert b"START RequestId" in base64.b64decode(ends[0]["LogResult"]) and "ErrorCode" not in ends[0], ends
    events = list(c.invoke_with_response_stream(FunctionName="greet", Payload=json.dumps({"do": "fail"}))["EventStream"])
    equal(len(events), 1)
    equal((events[0]["InvokeComplete"]["ErrorCode"], json.loads(events[0]["InvokeComplete"]["ErrorDetails"])["errorType"]), ("Unhandled", "ValueError"))


@step
def streamed_by_node():
    c.create_function(
        FunctionName="flow", Runtime="nodejs22.x", Role="arn:aws:iam::000000000000:role/any", Handler="index.handler", Timeout=20,
        Code={"ZipFile": packed({"index.js": "exports.handler = awslambda.streamifyResponse(async (event, out) => { for (let i = 0; i < 100; i++) out.write('part ' + i + ';'.repeat(1000)); out.end(); });"})},
    )
    got = b"".join(e["PayloadChunk"]["Payload"] for e in c.invoke_with_response_stream(FunctionName="flow")["EventStream"] if "PayloadChunk" in e)
    equal(got, b"".join(b"part %d" % i + b";" * 1000 for i in range(100)))


@step
def update():
    first = c.publish_version(FunctionName="greet")
    equal(c.publish_version(FunctionName="greet")["Version"], first["Version"])  # nothing has changed
    before = c.get_function_configuration(FunctionName="greet")
    r = c.update_function_code(FunctionName="greet", ZipFile=code("two"), Publish=True)
    c.get_waiter("function_updated_v2").wait(FunctionName="greet")
    assert r["CodeSha256"] != before["CodeSha256"] and int(r["Version"]) > int(first["Version"]), r
    equal(invoke(c)[1]["answer"], "two")
    equal(invoke(c, Qualifier=first["Version"])[1]["answer"], "one")
    equal(invoke(c, Qualifier=first["Version"])[0]["ExecutedVersion"], first["Version"])
    refused("PreconditionFailedException", 412, c.update_function_code, FunctionName="greet", ZipFile=code("no"), RevisionId=before["RevisionId"])
    r = c.update_function_configuration(FunctionName="greet", Timeout=1, MemorySize=256, Environment={"Variables": {"COLOR": "blue"}})
    equal((r["Timeout"], r["MemorySize"], r["Handler"], r["Description"]), (1, 256, "lambda_function.lambda_handler", "says hello"))
    out = invoke(c)[1]
    equal((out["answer"], out["color"], out["memory"]), ("two", "blue", "256"))
    r, out = invoke(c, Payload=json.dumps({"do": "sleep"}))
    equal((r["FunctionError"], out["errorType"]), ("Unhandled", "Sandbox.Timedout"))
    latest = c.get_function(FunctionName="greet")
    equal(latest["Configuration"]["Environment"]["Variables"], {"COLOR": "blue"})
    equal([v["Version"] for v in c.list_versions_by_function(FunctionName="greet")["Versions"]][:2], ["$LATEST", first["Version"]])
    global ONE, TWO
    ONE, TWO = [v["Version"] for v in c.list_versions_by_function(FunctionName="greet")["Versions"]][1:]


@step
def aliases():
    r = c.create_alias(FunctionName="greet", Name="live", FunctionVersion=ONE)
    equal((r["AliasArn"], r["FunctionVersion"]), (ARN + ":live", ONE))
    equal(invoke(c, Qualifier="live")[1]["answer"], "one")
    out = invoke(c, name=ARN + ":live")[1]
    equal((out["answer"], out["version"], out["arn"].rpartition(":")[2]), ("one", ONE, "live"))
    refused("ResourceConflictException", 409, c.create_alias, FunctionName="greet", Name="live", FunctionVersion=ONE)
    refused("ResourceNotFoundException", 404, c.create_alias, FunctionName="greet", Name="next", FunctionVersion="99")
    r = c.update_alias(FunctionName="greet", Name="live", RoutingConfig={"AdditionalVersionWeights": {TWO: 0.5}})
    equal(r["RoutingConfig"], {"AdditionalVersionWeights": {TWO: 0.5}})
    seen = set()
    for _ in range(100):  # one in 2^99 sees one alone
        r, out = invoke(c, Qualifier="live")
        seen.add((r["ExecutedVersion"], out["answer"]))
        if len(seen) == 2:
            break
    equal(seen, {(ONE, "one"), (TWO, "two")})
    c.update_alias(FunctionName="greet", Name="live", FunctionVersion=TWO, RoutingConfig={"AdditionalVersionWeights": {}})
    equal(c.get_alias(FunctionName="greet", Name="live").get("RoutingConfig"), None)
    equal([a["Name"] for a in c.list_aliases(FunctionName="greet")["Aliases"]], ["live"])
    refused("ResourceConflictException", 409, c.delete_function, FunctionName="greet", Qualifier=TWO)
    c.delete_function(FunctionName="greet", Qualifier=ONE)
    refused("ResourceNotFoundException", 404, c.invoke, FunctionName="greet", Qualifier=ONE)
    c.delete_alias(FunctionName="greet", Name="live")
    refused("ResourceNotFoundException", 404, c.get_alias, FunctionName="greet", Name="live")


@step
def others():
    equal(c.put_function_concurrency(FunctionName="greet", ReservedConcurrentExecutions=3)["ReservedConcurrentExecutions"], 3)
    equal(c.get_function_concurrency(FunctionName="greet")["ReservedConcurrentExecutions"], 3)
    equal(c.get_function(FunctionName="greet")["Concurrency"], {"ReservedConcurrentExecutions": 3})
    c.delete_function_concurrency(FunctionName="greet")
    equal(c.get_function_concurrency(FunctionName="greet").get("ReservedConcurrentExecutions"), None)
    equal(c.get_account_settings()["AccountUsage"]["FunctionCount"], 2)
    pages = c.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 1})
    equal([[f["FunctionName"] for f in p["Functions"]] for p in pages], [["flow"], ["greet"]])
    refused("UnsupportedOperationException", 400, c.list_layers)
    refused("InvalidParameterValueException", 400, c.update_function_configuration, FunctionName="greet", Layers=["arn:aws:lambda:eu-central-1:123456789012:layer:x:1"])


@step
def program():
    """The handler of AWS's guide to Go, with aws-lambda-go as it comes from the proxy."""
    with open(os.environ["LAMBDA_BOOTSTRAP"], "rb") as f:
        c.create_function(
            FunctionName="native", Runtime="provided.al2023", Role="arn:aws:iam::000000000000:role/any", Handler="any.thing", Code={"ZipFile": packed({"bootstrap": f.read()})},
            Timeout=20,
        )
    r, out = invoke(c, name="native", Payload=json.dumps({"name": "Ada"}))
    equal((r.get("FunctionError"), out), (None, "Hello Ada!"))
    r, out = invoke(c, name="native", Payload=b"null")
    equal((r["FunctionError"], out["errorMessage"]), ("Unhandled", "received nil event"))


@step
def bad_code():
    def create(files, **more):
        data = files if isinstance(files, bytes) else packed(files)
        return dict(FunctionName="bad", Runtime="python3.12", Role="arn:aws:iam::000000000000:role/any", Handler="lambda_function.lambda_handler", Code={"ZipFile": data}, **more)

    for what, files in {
        "no zip": b"not a zip", "an end": b"PK\x05\x06" + bytes(18), "torn": code()[:-30],
        "out of the code": {"../escape.py": "x"}, "absolute": {"/etc/passwd": "x"}, "no handler": {"other.py": "x"},
    }.items():
        e = refused("InvalidParameterValueException", 400, c.create_function, **create(files))
        assert "zip" in str(e) or "cannot be built" in str(e), (what, e)
    link = io.BytesIO()
    with zipfile.ZipFile(link, "w") as z:
        info = zipfile.ZipInfo("out")
        info.external_attr = 0o120777 << 16
        z.writestr(info, "/etc")
        z.writestr("out/passwd", "x")
    refused("InvalidParameterValueException", 400, c.create_function, **create(link.getvalue()))
    bomb = packed({"%d/%d.py" % (i, i): "" for i in range(50_001)})  # with their directories more than there may be
    refused("InvalidParameterValueException", 400, c.create_function, **create(bomb))
    for more in ({"Timeout": 901}, {"Environment": {"Variables": {"AWS_REGION": "x"}}}):
        refused("InvalidParameterValueException", 400, c.create_function, **create(code(), **more))
    runtime = create(code())
    refused("InvalidParameterValueException", 400, c.create_function, **{**runtime, "Runtime": "ruby3.3"})
    refused("InvalidParameterValueException", 400, c.create_function, **{**runtime, "Code": {"S3Bucket": "a-bucket", "S3Key": "k"}})
    refused("ResourceNotFoundException", 404, c.get_function, FunctionName="bad")


@step
def strangers():
    args = {"FunctionName": "greet"}
    wrong = boto3.client("lambda", endpoint_url=os.environ["LAMBDA_ENDPOINT"], region_name="eu-central-1", aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"], aws_secret_access_key="x" * 43)
    refused("InvalidSignatureException", 403, wrong.invoke, **args)
    unknown = boto3.client("lambda", endpoint_url=os.environ["LAMBDA_ENDPOINT"], region_name="eu-central-1", aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="x" * 43)
    refused("UnrecognizedClientException", 403, unknown.invoke, **args)
    refused("InvalidSignatureException", 403, client(region_name="us-east-1").invoke, **args)
    refused("MissingAuthenticationTokenException", 403, client(config=Config(signature_version=UNSIGNED)).invoke, **args)
    other = client("OTHER")
    refused("ResourceNotFoundException", 404, other.invoke, **args)
    refused("ResourceNotFoundException", 404, other.delete_function, FunctionName=ARN)
    equal(other.list_functions()["Functions"], [])
    caller = client("CALLER")
    equal(invoke(caller)[1]["answer"], "two")
    refused("AccessDeniedException", 403, caller.delete_function, **args)
    refused("AccessDeniedException", 403, caller.list_functions)


@step
def delete():
    for name in ("greet", "flow", "native"):
        c.delete_function(FunctionName=name)
        refused("ResourceNotFoundException", 404, c.get_function, FunctionName=name)
    refused("ResourceNotFoundException", 404, c.delete_function, FunctionName="greet")
    equal(c.list_functions()["Functions"], [])


ACCOUNT = os.environ["LAMBDA_ACCOUNT"]
for s in steps:
    try:
        s()
    except BaseException:
        print("step", s.__name__, "failed", file=sys.stderr)
        raise
    print("step", s.__name__, "passed", flush=True)
