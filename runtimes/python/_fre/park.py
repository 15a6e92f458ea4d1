"""A parked interpreter: the bootstrap, started ahead of its function (docs/protocol.md).
Loads the modules that most functions and events need, then waits for LOAD."""

import gc
import os
import sys
import time

import _fre

# Only modules of the standard library and FRE: a parked interpreter has no function yet.
PRELOADED = ("json", "traceback", "select", "threading", "_fre.awslambda", "_fre.contracts", "_fre.coroutine", "_fre.files", "_fre.limits", "_fre.stream", "_fre.threads")


def wait():
    """Waits for LOAD, becomes the function's process and returns the handler's name."""
    before = set(sys.modules)
    for module in PRELOADED:
        __import__(module)
    loaded = {m.partition(".")[0] for m in sys.modules.keys() - before}
    gc.collect()
    _fre.parked = True
    _fre.send(_fre.PARKED, 0, 0)
    frame = _fre.read_frame()
    _fre.parked = False
    if frame is None:
        _fre.hung_up()
    if frame[0] != _fre.LOAD or frame[2]:
        _fre.die("no LOAD")
    load = _fre.decode(frame[3])
    handler, directory, env = load.get("handler"), load.get("dir"), load.get("env")
    if type(handler) is not str or type(directory) is not str or type(env) is not dict:
        _fre.die("LOAD")
    os.chdir(directory)
    path = [os.path.abspath(p) for p in env["PYTHONPATH"].split(":")] if env.get("PYTHONPATH") else []
    if shadows(path, loaded):
        # The function's own json.py, for example, has precedence: start Python anew.
        os.set_inheritable(_fre.fd, True)
        os.execve(sys.executable, [*sys.orig_argv, handler], env)
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    os.environ.update(env)
    sys.path[:0] = path
    time.tzset()  # TZ may have changed
    return handler


def shadows(path, modules):
    """Reports whether a directory of path has a module with a name in modules, or cannot
    be listed."""
    for directory in path:
        try:
            for name in os.listdir(directory):
                if name.partition(".")[0] in modules:
                    return True
        except FileNotFoundError:
            pass
        except OSError:  # a zip archive
            return True
    return False
