package python

import (
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/template"
)

// parse compiles a module without running it.
const parse = `
import sys, traceback
try:
    with open(sys.argv[1], "rb") as f:
        compile(f.read(), sys.argv[1], "exec", dont_inherit=True)
except Exception as e:
    sys.stderr.write("".join(traceback.format_exception_only(type(e), e)))
    sys.exit(1)
`

// Source implements image.Sourced.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	at := strings.LastIndexAny(t.Handler, ".:")
	if at < 0 {
		return "", ""
	}
	module := strings.ReplaceAll(t.Handler[:at], ".", "/")
	for _, file := range []string{module + "/__init__.py", module + ".py"} { // in the order of import
		if read(file) != nil {
			return file, "python3"
		}
	}
	return "", ""
}

var interpreters = regexp.MustCompile(`^python(3(\.[0-9]+)?)?$`)

// Parse implements image.Parser.
func (Runtime) Parse(interpreter, file string) []string {
	if !interpreters.MatchString(interpreter) || path.Ext(file) != ".py" && path.Ext(file) != "" {
		return nil
	}
	return []string{"-I", "-S", "-W", "ignore", "-c", parse}
}
