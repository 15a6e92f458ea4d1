"""A handler that cannot be loaded."""

raise RuntimeError("not today")
