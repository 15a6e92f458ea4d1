def fail():
    raise KeyError("at import")


fail()
