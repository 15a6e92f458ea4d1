// Package php runs functions written in PHP: a bootstrap that speaks the channel, in the
// distribution's php-cli.
package php

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

var (
	//go:embed bootstrap.php
	bootstrap []byte
	//go:embed php.ini
	ini []byte
)

// Runtime is the runtime "php". It implements image.Runtime.
type Runtime struct{}

// Name is "php".
func (Runtime) Name() string { return "php" }

// Bases is FRE's base with the interpreter.
func (Runtime) Bases() []string { return []string{"php"} }

// Bootstrap returns the program that loads the handler, and PHP's settings.
func (Runtime) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.php": bootstrap, "php.ini": ini}
}

// handlerPattern is file.function or file.Class::method, the file without its extension, the
// function and class perhaps in namespaces.
var handlerPattern = regexp.MustCompile(`^[^\x00-\x1f./][^\x00-\x1f]*\.[\pL_][\pL\pN_]*(\\[\pL_][\pL\pN_]*)*(::[\pL_][\pL\pN_]*)?$`)

// Untraced implements [image.Traced]: time zones and character sets, which programs open by names
// in their data.
func (Runtime) Untraced() []string {
	return []string{"usr/share/zoneinfo", "usr/lib/*/gconv"}
}

// Interpreter is the requirement on a base: the bootstrap uses read-only properties and first-class
// callables. -n ignores the image's own settings, which may print complaints.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{Name: "php", Version: []string{"-n", "--version"}, Before: "PHP ", Least: "8.1"}
}

// Command runs the bootstrap. A PHP process handles one event at a time.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) || slices.Contains(strings.Split(t.Handler, "/"), "..") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not file.function: write index.handle for the function handle in index.php, or index.App::handle for a method", t.Handler)}
	}
	if t.Instances.Concurrency > 1 {
		return nil, nil, &template.FieldError{Field: "instances.concurrency", Message: fmt.Sprintf(
			"instances.concurrency is %d, but a PHP process handles one event at a time: remove the key, and each concurrent event gets its own instance", t.Instances.Concurrency)}
	}
	return append(command(), t.Handler), append(environment(), "FRE_CONCURRENCY=1"), nil
}

func command() []string {
	return []string{"/usr/bin/php", "-c", "/opt/fre/php.ini", "/opt/fre/bootstrap.php"}
}

func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "FRE_CHANNEL=3"}
}

// Parked is the bootstrap without a handler. PHP reads the paths of its settings and the kind of
// the allocator only at the start.
func (Runtime) Parked(_ *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(), Env: environment(), Mounts: []string{"/function"}}
	if !s.Fits(env, []string{"PHP", "USE_ZEND_", "USE_TRACKED_", "ZEND_"}, nil) {
		return nil
	}
	return s
}

// Source implements image.Sourced.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	at := strings.LastIndexByte(t.Handler, '.')
	if file = path.Clean(t.Handler[:max(at, 0)]) + ".php"; read(file) == nil {
		return "", ""
	}
	return file, "php"
}

var interpreters = regexp.MustCompile(`^php[0-9.]*$`)

// Parse implements image.Parser.
func (Runtime) Parse(interpreter, _ string) []string {
	if !interpreters.MatchString(interpreter) {
		return nil
	}
	return []string{"-n", "-d", "display_errors=stderr", "-d", "log_errors=0", "-l"}
}

// versionPattern is the interpreter's name in Debian, "php8.2".
var versionPattern = regexp.MustCompile(`^php([0-9]+\.[0-9]+)$`)

// FinishBase is the Finish of the base "php". It replaces the packages' installation scripts: it
// makes the name php, and the settings that load the base's extensions.
func FinishBase(ctx context.Context, step *image.Step) ([]store.Part, error) {
	root, err := os.OpenRoot(step.Rootfs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	version, extensions, err := settings(root.FS())
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(step)
	if err != nil {
		return nil, err
	}
	conf := path.Join("out/etc/php", version, "cli/conf.d")
	if err := os.MkdirAll(filepath.Join(b.Dir, conf), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(b.Dir, "out/usr/bin"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink("php"+version, filepath.Join(b.Dir, "out/usr/bin/php")); err != nil {
		return nil, err
	}
	if err := b.Write(path.Join(conf, "20-extensions.ini"), extensions); err != nil {
		return nil, err
	}
	tree, err := b.Import(ctx, "out", func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	return []store.Part{{Kind: "base", Name: "php settings", Version: version, Tree: tree}}, nil
}

// settings returns the version of a base environment's interpreter ("8.2") and the settings that
// load its extensions.
func settings(rootfs fs.FS) (v string, ini []byte, err error) {
	if v, err = version(rootfs); err != nil {
		return "", nil, err
	}
	files, err := fs.Glob(rootfs, "usr/lib/php/2*/*.so")
	return v, extensions(files), err
}

// version returns the version of a base environment's interpreter: "8.2".
func version(rootfs fs.FS) (string, error) {
	names, err := fs.Glob(rootfs, "usr/bin/php*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if m := versionPattern.FindStringSubmatch(path.Base(name)); m != nil {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("the base environment has no usr/bin/php8.*: %w", fs.ErrNotExist)
}

// extensions returns the lines that load the files, dependencies first.
func extensions(files []string) []byte {
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(path.Base(f), ".so"))
	}
	early := []string{"mysqlnd", "pdo", "xml"}
	slices.SortFunc(names, func(a, b string) int {
		if a, b := slices.Contains(early, a), slices.Contains(early, b); a != b {
			if a {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	var text strings.Builder
	for _, name := range names {
		kind := "extension"
		if name == "opcache" {
			kind = "zend_extension"
		}
		_, _ = fmt.Fprintf(&text, "%s=%s\n", kind, name)
	}
	return []byte(text.String())
}
