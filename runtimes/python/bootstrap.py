# The first program of every Python function: python3 bootstrap.py module.function
# Without an argument it parks: the engine names the function later.
#
# A script is compiled anew at every start, a module is not, so the bootstrap
# itself is the package _fre beside this file.
#
# Children of multiprocessing (spawn, forkserver) import the main program as
# __mp_main__: to them it is empty.
if __name__ == "__main__":
    import sys

    sys.path[0] = "/opt/fre"
    if not __file__.startswith("/opt/fre/"):  # in the project's own tests
        sys.path[0] = __file__.rpartition("/")[0]
    from _fre import main

    main(*sys.argv[1:])
