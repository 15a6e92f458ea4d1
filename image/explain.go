package image

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/fre-engine/fre/image/debian"
)

// missing matches messages of languages, the loader and the C library about a missing file or
// module. The only group that matches is its name.
var missing = lazyregexp.New(`No module named '([\w.]+)'` + // Python
	`|Cannot find (?:module|package) '([^'\s]+)'` + // Node
	`|cannot load such file -- (\S+)` + // Ruby
	`|(?:ClassNotFoundException|NoClassDefFoundError): (?:Could not initialize class )?([\w./$]+)` + // Java
	`|([\w+.-]+\.so[\w.]*): cannot open shared object file` +
	`|(?:No such file or directory|ENOENT|FileNotFoundException|NoSuchFileException|Can't load library)[^/'"\n]{0,60}['"]?(/?[\w@+./-]+)` +
	`|(/[\w@+./-]+) \(No such file or directory\)`)

// maxFailureText bounds the text that Explain reads, in bytes.
const maxFailureText = 16 << 10

// Explain searches a failure's text for a missing file or module that slimming left out, and
// returns the template's key that restores it; "" without a match. l may be nil.
func (l *LeftOut) Explain(text string) string {
	if l == nil {
		return ""
	}
	wanted := ""
	for _, m := range missing.FindAllStringSubmatch(text[:min(len(text), maxFailureText)], -1) {
		wanted = m[slices.IndexFunc(m[1:], func(s string) bool { return s != "" })+1]
		if wanted == "" {
			continue
		}
		if found := l.explain(wanted); found != "" {
			return found
		}
	}
	if wanted != "" && len(l.Unopened) > 0 {
		return fmt.Sprintf("the image was slimmed to the files opened by tests: if %s was left out (fre image inspect --left-out), add the file to keep in fret.yaml and slim again, or deploy the whole image", wanted)
	}
	return ""
}

func (l *LeftOut) explain(wanted string) string {
	for _, f := range l.Files {
		if f.holds(wanted) {
			return fmt.Sprintf("%s was left out of the base with %s: write keep: [%q] or slim: false in fret.yaml", wanted, f.Pattern, f.Pattern)
		}
	}
	top := topName(wanted)
	name := l.Apart[top]
	if i := slices.IndexFunc(l.Packages, func(p string) bool {
		return p == top || slices.Contains([]string{"python3-", "ruby-", "php-"}, strings.TrimSuffix(p, top))
	}); name == "" && i >= 0 {
		name = l.Packages[i]
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s is in the Debian package %s, missing in the base: write packages: {deb: [%s]} in fret.yaml", wanted, name, name)
}

// holds reports whether the pattern left out a file, class or module that a program asked for.
func (f *LeftOutFiles) holds(wanted string) bool {
	if p, ok := strings.CutPrefix(wanted, "/"); ok {
		keeps, err := debian.Keep([]string{f.Pattern})
		return err == nil && !keeps(p)
	}
	dotted := strings.ReplaceAll(wanted, "/", ".")
	for _, name := range f.Names {
		if strings.Contains(name, ".") && strings.HasPrefix(dotted, name+".") { // package of a class
			return true
		}
	}
	return slices.Contains(f.Names, topName(wanted))
}

// topName returns the outermost module: "irb" of "irb/cmd", "xml" of "xml.dom".
func topName(wanted string) string {
	if strings.Contains(wanted, ".so") { // a library
		return askedName(wanted)
	}
	top, _, _ := strings.Cut(wanted, "/")
	top, _, _ = strings.Cut(top, ".")
	return top
}

// versioned matches the end of a gem's directory.
var versioned = lazyregexp.New(`-[0-9][0-9.]*$`)

// askedName returns the name by which programs ask for a file or directory: "nis" for
// nis.cpython-311-x86_64-linux-gnu.so, "debug" for debug-1.6.3.
func askedName(name string) string {
	return stem(versioned.ReplaceAllString(path.Base(name), ""))
}

// asked returns the name by which programs ask for the part of a path that pattern matches; "" for
// data, which programs open by path.
func asked(pattern, name string) string {
	if strings.HasPrefix(pattern, "usr/share/") || strings.HasPrefix(pattern, "usr/include") || strings.Contains(pattern, "**") {
		return ""
	}
	parts := strings.Split(name, "/")
	return askedName(parts[min(strings.Count(pattern, "/"), len(parts)-1)])
}
