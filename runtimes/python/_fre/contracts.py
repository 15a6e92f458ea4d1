"""Handlers written for something else than FRE, as FRE_CONTRACT says
(docs/contracts.md)."""

import _fre


def load(contract, name):
    """Loads what name says. Returns a handler as FRE's own are, or an object whose
    serve(ready) serves all events."""
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
    """What the Functions Framework makes of a function: a WSGI or an ASGI application."""
    import os

    module, _, target = name.rpartition(".")
    try:
        from functions_framework import create_app
    except ModuleNotFoundError as e:
        if e.name != "functions_framework":
            raise
        raise ModuleNotFoundError("the Functions Framework is not there: add functions-framework to packages.pip") from None
    return create_app(target, os.path.join(os.getcwd(), module.replace(".", "/") + ".py"))
