"""Handlers written for another contract than FRE's, named by FRE_CONTRACT
(docs/contracts.md)."""

import _fre


def load(contract, name):
    """Loads the handler or application called name. Returns a handler of FRE's kind, or
    an object with a method serve(ready) that serves all events."""
    if contract == "lambda":
        from _fre import awslambda

        return awslambda.wrap(_fre.load(name))
    if contract == "wsgi":
        from _fre import wsgi

        return wsgi.wrap(_fre.load(name))
    if contract == "functions-framework":
        app = framework(name)
        if hasattr(app, "wsgi_app"):
            from _fre import wsgi

            return wsgi.wrap(app)
        from _fre import asgi

        return asgi.Application(app)
    from _fre import asgi

    if contract == "asgi":
        return asgi.Application(_fre.load(name))
    if contract == "knative":
        return asgi.Knative(_fre.load(name), name)
    raise ValueError("FRE_CONTRACT is %r" % contract)


def framework(name):
    """Returns the Functions Framework's WSGI or ASGI application of a function."""
    import os

    module, _, target = name.rpartition(".")
    try:
        from functions_framework import create_app
    except ModuleNotFoundError as e:
        if e.name != "functions_framework":
            raise
        raise ModuleNotFoundError("the Functions Framework is missing: add functions-framework to packages.pip") from None
    return create_app(target, os.path.join(os.getcwd(), module.replace(".", "/") + ".py"))
