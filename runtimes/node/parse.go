package node

import (
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/template"
)

// parse accepts a .js file that is valid as either kind of module, because the rule that decides
// between the kinds differs by node's version.
const parse = `
const fs = require('fs'), vm = require('vm');
Error.stackTraceLimit = 0;
const filename = process.argv[1];
const text = fs.readFileSync(filename, 'utf8').replace(/^\uFEFF?#!/, '//');
const kinds = {
  '.cjs': () => vm.compileFunction(text, ['exports', 'require', 'module', '__filename', '__dirname'], { filename }),
  '.mjs': () => new vm.SourceTextModule(text, { identifier: filename }),
};
const parse = (kind) => {
  try {
    kinds[kind]();
  } catch (e) {
    return e;
  }
};
const kind = Object.keys(kinds).find((k) => filename.endsWith(k));
const errors = (kind ? [kind] : ['.cjs', '.mjs']).map(parse);
if (errors.every(Boolean)) {
  const [first, second = first] = errors;
  throw /^\s*(import|export)\b/m.test(text) ? second : first; // node tells the line of what nobody catches
}
`

// extensions lists the extensions of a handler's file in the bootstrap's order.
var extensions = []string{".js", ".cjs", ".mjs"}

// Source implements image.Sourced. It does not read package.json, and so finds no file in a
// directory with a package.json.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	at := strings.LastIndexByte(t.Handler, '.')
	if at < 0 {
		return "", ""
	}
	name := path.Clean(t.Handler[:at])
	for _, name := range []string{name, name + "/index"} {
		for _, extension := range extensions {
			if file := name + extension; read(file) != nil {
				return file, "node"
			}
		}
		if read(path.Join(name, "package.json")) != nil {
			break
		}
	}
	return "", ""
}

// Parse implements image.Parser.
func (Runtime) Parse(interpreter, file string) []string {
	extension := path.Ext(file)
	if interpreter != "node" && interpreter != "nodejs" || extension != "" && !slices.Contains(extensions, extension) {
		return nil
	}
	return []string{"--no-warnings", "--experimental-vm-modules", "-e", parse}
}
