abort "not today"
