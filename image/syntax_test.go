package image

import (
	"path"
	"strings"
	"testing"
)

// TestSourceOf: A build finds the source file of a handler, a server's script or a `#!` script, in
// order to check its syntax.
func TestSourceOf(t *testing.T) {
	code := map[string]string{
		"server.js": "1", "web/a.php": "<?php", "app.pyz": "#!/usr/bin/env python3\nPK\x00\x03", "run": "#!/usr/bin/env -S FOO=1 node --x\n",
		"a.sh": "#!/bin/bash -e", "plain": "no first line", "empty": "", "bare": "#!", "data.json": "{}",
	}
	for _, tt := range []struct{ words, file, interpreter string }{
		{"node server.js", "server.js", "node"},
		{"/usr/local/bin/node --watch ./server.js data.json", "server.js", "node"},
		{"php -S 0.0.0.0:$PORT /function/web/a.php", "web/a.php", "php"},
		{"python3 app.pyz", "", ""},
		{"app.pyz", "", ""},
		{"./run --port 1", "run", "node"},
		{"a.sh", "a.sh", "bash"},
		{"plain", "plain", ""},
		{"empty", "empty", ""},
		{"bare", "bare", ""},
		{"python3 -m json.tool data.json", "", ""},
		{"sh -c ./a.sh", "", ""},
		{"npm start", "", ""},
		{"", "", ""},
	} {
		file, interpreter := SourceOf(strings.Fields(tt.words), func(file string) []byte {
			if text, ok := code[file]; ok {
				return []byte(text)
			}
			return nil
		})
		if file != tt.file || interpreter != tt.interpreter {
			t.Errorf("%q: %q by %q, want %q by %q", tt.words, file, interpreter, tt.file, tt.interpreter)
		}
	}
}

// FuzzSourceOf: Any command gives a file with a plain interpreter name, or none.
func FuzzSourceOf(f *testing.F) {
	f.Add("run", "#!/usr/bin/env -S A=1 python3 -u\n")
	f.Add("sh run", "\x00")
	f.Fuzz(func(t *testing.T, command, text string) {
		file, interpreter := SourceOf(strings.Fields(command), func(string) []byte { return []byte(text) })
		if file == "" && interpreter != "" || interpreter != "" && interpreter != path.Base(interpreter) {
			t.Errorf("%q: %q by %q", command, file, interpreter)
		}
	})
}
