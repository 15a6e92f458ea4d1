# The first program of every Python function: python3 bootstrap.py module.function
# Without an argument the interpreter parks: the engine names the function later.
#
# Python compiles a script at every start but caches a module, so the bootstrap
# itself is the package _fre beside this file.
#
# Children of multiprocessing (spawn, forkserver) import the main program as
# __mp_main__: for such children the file does nothing.
if __name__ == "__main__":
    import sys

    sys.path[0] = "/opt/fre"
    if not __file__.startswith("/opt/fre/"):  # in the project's own tests
        sys.path[0] = __file__.rpartition("/")[0]
    from _fre import main

    main(*sys.argv[1:])
