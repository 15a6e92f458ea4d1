# A function may call a module of its own like one of the standard library.
mine = True
