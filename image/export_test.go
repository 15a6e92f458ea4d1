package image

// CodeFilesOf returns files of code with the given names.
func CodeFilesOf(names ...string) CodeFiles {
	c := &codeTree{entries: map[string]codeEntry{}}
	for _, name := range names {
		c.entries[name] = codeEntry{}
	}
	return CodeFiles{c}
}
