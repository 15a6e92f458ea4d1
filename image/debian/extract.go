package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxScript is above the size of any maintainer script.
const maxScript = 1 << 20

// Extract downloads one package and writes the files as Unpack does, for a tree over another tree
// of Unpack: without the links of merged directories and sh. If the postinst script has
// update-alternatives make links to files of the package, Extract makes the links. skipped names
// further commands of the script that matter to users of the package ("fc-cache"), sorted.
func (a *Archive) Extract(ctx context.Context, p Package, w Writer, keep func(path string) bool) (skipped []string, err error) {
	if keep == nil {
		keep = func(string) bool { return true }
	}
	if p.Size > a.limits.deb {
		return nil, fmt.Errorf("package %s: %d bytes: more than %d", p.Name, p.Size, a.limits.deb)
	}
	f, err := a.fetch.verified(ctx, "deb", p.SHA256, p.Size, p.uri+"/"+p.Filename)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	defer f.Close()
	t := &tree{w: w, keep: keep, limits: a.limits, log: a.log, kind: map[string]byte{}, over: true}
	fail := func(err error) error { return fmt.Errorf("package %s: %w", p.Name, err) }
	if err := t.deb(ctx, p.Name, f); err != nil {
		return nil, fail(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fail(err)
	}
	script, err := postinst(f)
	if err != nil {
		return nil, fail(err)
	}
	links, skipped := readPostinst(script)
	for _, l := range links {
		if err := t.alternative(l); err != nil {
			return nil, fail(err)
		}
	}
	if err := t.finish(); err != nil {
		return nil, fail(err)
	}
	return skipped, nil
}

// postinst returns a package's postinst script; empty without one.
func postinst(deb io.Reader) ([]byte, error) {
	control, closeControl, err := openMember(deb, "control.tar")
	if err != nil {
		return nil, err
	}
	defer closeControl()
	tr := tar.NewReader(&boundReader{r: control, left: 64 << 20})
	for range 1000 {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("control.tar: %w", err)
		}
		if path.Clean(h.Name) != "postinst" || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > maxScript {
			return nil, fmt.Errorf("%w: postinst of %d bytes", ErrUnsafe, h.Size)
		}
		return io.ReadAll(tr)
	}
	return nil, fmt.Errorf("%w: control.tar has more than 1000 members", ErrUnsafe)
}

var (
	continued   = regexp.MustCompile(`\\\n\s*`)
	assignment  = regexp.MustCompile(`(?m)^\s*([A-Za-z_][A-Za-z0-9_]*)=["']?([A-Za-z0-9_./+-]+)["']?\s*(?:;|$)`)
	loop        = regexp.MustCompile(`(?m)\bfor\s+([A-Za-z_][A-Za-z0-9_]*)\s+in\s+([A-Za-z0-9_./+ \t-]+?)\s*(?:;|$)`)
	installs    = regexp.MustCompile(`(?m)\bupdate-alternatives\b[^\n]*?--install[^\n]*`)
	variable    = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)
	heavyScript = regexp.MustCompile(`(?m)^[^#\n]*?\b(` + strings.Join(mattering(), "|") + `)\b`)
)

// mattering lists commands of postinst scripts whose results programs may look for. Further
// commands concern only the system around the package: services, users, menus, registered
// documents. Missing bytecode of py3compile costs time, no more.
func mattering() []string {
	return []string{
		"dpkg-divert", "fc-cache", "gdk-pixbuf-query-loaders", "glib-compile-schemas", "gio-querymodules", "gtk-query-immodules-[0-9.]+",
		"install-sgmlcatalog", "locale-gen", "localedef", "mktexlsr", "fmtutil-sys", "phpenmod", "register-python-package",
		"update-ca-certificates-java", "update-catalog", "update-fonts-[a-z]+", "update-gsfontmap", "update-java-alternatives",
		"update-mime-database", "update-texmf", "update-xmlcatalog", "useradd", "adduser", "a2enmod", "make-ssl-cert",
	}
}

// maxAlternatives bounds the links from a script's loops.
const maxAlternatives = 1000

// readPostinst extracts from a script the links of update-alternatives(1) and the commands in
// mattering. It finds links with literal paths, or with a variable that is set once to a plain word
// or loops over plain words. It does not parse conditions: a conditional command counts.
func readPostinst(script []byte) (links []alternative, skipped []string) {
	text := continued.ReplaceAllString(string(script), " ")
	values := map[string][]string{}
	for _, m := range assignment.FindAllStringSubmatch(text, -1) {
		values[m[1]] = []string{m[2]}
	}
	for _, m := range loop.FindAllStringSubmatch(text, -1) {
		values[m[1]] = strings.Fields(m[2])
	}
	for _, line := range installs.FindAllString(text, -1) {
		words := strings.Fields(line)
		for i, w := range words {
			switch {
			case w == "--install" && i+3 < len(words):
				links = expand(links, words[i+1], words[i+3], values)
			case w == "--slave" && i+3 < len(words):
				links = expand(links, words[i+1], words[i+3], values)
			}
		}
	}
	for _, m := range heavyScript.FindAllStringSubmatch(text, -1) {
		skipped = append(skipped, m[1])
	}
	slices.Sort(skipped)
	return links, slices.Compact(skipped)
}

// expand adds the link once for each value of its variable. A link with two looping variables is
// left out.
func expand(links []alternative, link, target string, values map[string][]string) []alternative {
	link, target = strings.Trim(link, `"'`), strings.Trim(target, `"'`)
	running, over, ok := looping(link+" "+target, values)
	if !ok {
		return links
	}
	for _, v := range over {
		set := func(s string) string {
			return variable.ReplaceAllStringFunc(s, func(ref string) string {
				name := strings.Trim(ref, "${}")
				if name == running {
					return v
				}
				return values[name][0]
			})
		}
		l := alternative{path.Clean(set(link)), path.Clean(set(target))}
		if len(links) < maxAlternatives && l.valid() {
			links = append(links, l)
		}
	}
	return links
}

// looping returns the variable of s with several values, and the values; without such a variable,
// one empty value. ok is false if s has two such variables or an unknown one.
func looping(s string, values map[string][]string) (running string, over []string, ok bool) {
	over = []string{""}
	for _, m := range variable.FindAllStringSubmatch(s, -1) {
		name := m[1] + m[2]
		switch v := values[name]; {
		case len(v) == 0:
			return "", nil, false
		case len(v) > 1 && running != "" && running != name:
			return "", nil, false
		case len(v) > 1:
			over, running = v, name
		}
	}
	return running, over, true
}

// ParseStatus reads dpkg's status file, var/lib/dpkg/status, and returns name → version of the
// installed packages of this architecture or of none.
func ParseStatus(text []byte) (map[string]string, error) {
	want := map[string]bool{"package": true, "status": true, "version": true, "architecture": true}
	installed := map[string]string{}
	err := readParagraphs(bytes.NewReader(text), want, func(p paragraph) error {
		if f := strings.Fields(p["status"]); len(f) != 3 || f[2] != "installed" {
			return nil
		}
		if a := p["architecture"]; a != "all" && a != debianArch() {
			return nil
		}
		if !validName(p["package"]) {
			return fmt.Errorf("bad package name %.80q", p["package"])
		}
		if _, err := parseVersion(p["version"]); err != nil {
			return fmt.Errorf("package %s: version %.80q: %w", p["package"], p["version"], err)
		}
		installed[p["package"]] = p["version"]
		return nil
	})
	return installed, err
}
