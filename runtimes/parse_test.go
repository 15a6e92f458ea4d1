package runtimes_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

// TestParse: A syntax error in the code is refused with file and line by the language's own parser.
// No code runs.
func TestParse(t *testing.T) {
	for _, tt := range []struct {
		runtime, handler, file, text string
		line                         string // of the error; "" for success
	}{
		{"python", "main.handle", "main.py", "raise SystemExit(1)\n", ""},
		{"python", "main.handle", "main.py", "import os\ndef handle(event, context:\n    pass\n", "main.py\", line 2"},
		{"python", "a.b.handle", "a/b/__init__.py", "x = 1\n  y = 2\n", "__init__.py\", line 2"},
		{"python", "main:app", "main.py", "return 1\n", "main.py\", line 1"},
		{"python", "main.handle", "main.py", "# -*- coding: nonesuch -*-\n", "nonesuch"},
		{"python", "main.handle", "main.py", "x = '\\d'\n", ""}, // a warning
		{"node", "index.handle", "index.js", "#!/usr/bin/env node\nprocess.exit(1); exports.handle = 1\n", ""},
		{"node", "index.handle", "index.js", "import fs from 'fs';\nexport const handle = () => 1;\nawait null;\n", ""},
		{"node", "index.handle", "index.js", "return 1\n", ""},
		{"node", "index.handle", "index.js", "\nexports.handle = () => {\n", "index.js:"},
		{"node", "index.handle", "index.js", "import fs from 'fs';\nexport const handle = ;\n", "index.js:2"},
		{"node", "dist/index.handle", "dist/index.mjs", "export const handle = ;\n", "dist/index.mjs:1"},
		{"node", "index.handle", "index.cjs", "export const handle = 1;\n", "index.cjs:1"},
		{"php", "index.handle", "index.php", "<?php exit(1); function handle() {}\n", ""},
		{"php", "index.handle", "index.php", "<?php\nfunction handle( {}\n", "on line 2"},
		{"ruby", "main.handle", "main.rb", "exit 1\ndef handle(event, context) = 1\n", ""},
		{"ruby", "main.App.handle", "main.rb", "module App\n  def self.handle(\nend\n", "main.rb:"},
		{"native", "run.sh", "run.sh", "#!/bin/sh\nexit 1\n", ""},
		{"native", "bin/run.sh", "bin/run.sh", "#!/bin/sh -e\nif true; then\n", "run.sh"},
		{"native", "run", "run", "#!/usr/bin/env python3\nimport os\n(\n", "line 3"},
		{"http", "python3 -u app.py --port $PORT", "app.py", "def f(:\n", "line 1"},
		{"http", "node ./server.js", "server.js", "const a = ;\n", "server.js:1"},
		{"http", "/usr/bin/php -S 0.0.0.0:$PORT web/index.php", "web/index.php", "<?php\nfunction (;\n", "on line 2"},
		{"http", "sh /function/start.sh", "start.sh", "if true\n", "start.sh"},
	} {
		t.Run(tt.runtime+" "+tt.text, func(t *testing.T) {
			t.Parallel()
			var file, interpreter string
			var args []string
			for _, r := range runtimes.All() {
				if r.Name() == tt.runtime {
					file, interpreter = r.(image.Sourced).Source(&template.Template{Handler: tt.handler}, func(file string) []byte {
						if file != tt.file {
							return nil
						}
						return []byte(tt.text)
					})
				}
			}
			if file != tt.file {
				t.Fatalf("parses %q, want %q", file, tt.file)
			}
			for _, r := range runtimes.All() {
				if p, ok := r.(image.Parser); ok && args == nil {
					args = p.Parse(interpreter, file)
				}
			}
			program, err := exec.LookPath(interpreter)
			if err != nil {
				t.Skip("no interpreter: ", err)
			}
			source := filepath.Join(t.TempDir(), file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(source), 0o755), os.WriteFile(source, []byte(tt.text), 0o644)); err != nil {
				t.Fatal(err)
			}
			said, err := exec.Command(program, append(args, source)...).CombinedOutput()
			if (err != nil) != (tt.line != "") || !strings.Contains(string(said), tt.line) {
				t.Errorf("%v, %s; want %q", err, said, tt.line)
			}
		})
	}
}
