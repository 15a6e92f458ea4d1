package python

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// requirements is the content of one file of requirements (pip's manual, "Requirements File
// Format").
type requirements struct {
	list        []requirement
	files       []string // -r, relative to the file
	constraints []string // -c, relative to the file
	pre         bool     // --pre
	binary      formats
}

// requirement is one line: "lxml[html]==5.3.0; python_version > '3.8'".
type requirement struct {
	text   string
	hashes []string // "sha256:…"
}

// requirementPattern is the pattern of a template's list, plus parentheses around the version,
// which PEP 508 allows.
var requirementPattern = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) *(\[[A-Za-z0-9._, -]*\])? *(\([<>=!~][^\x00-\x1f@()\\]*\) *(;[^\x00-\x1f@\\]*)?|[<>=!~;][^\x00-\x1f@\\]*)?$`)

// parseRequirements reads a file of requirements. It refuses lines that would make a build depend
// on more than the package indexes of the host's configuration: options that name other indexes,
// URLs, paths, and variables. uv would take variables from an environment that holds the indexes'
// passwords. Errors name file and line.
func parseRequirements(file string, src []byte) (*requirements, error) {
	out := &requirements{}
	number, first, logical := 0, 0, ""
	lines := strings.Split(blanks.Replace(string(src)), "\n")
	for _, line := range lines {
		number++
		if logical == "" {
			first = number
		}
		if before, ok := strings.CutSuffix(line, `\`); ok && number < len(lines) && withoutComment(line) != "" {
			logical += before
			continue
		} else if ok {
			line = before
		}
		logical += line
		if err := out.line(withoutComment(logical)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, first, err)
		}
		logical = ""
	}
	return out, nil
}

// blanks maps all of pip's spaces and line ends, of Python's splitlines and of PEP 508, to one kind
// each.
var blanks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\t", " ", "\u00a0", " ")

// withoutComment cuts at a # that begins the line or follows a space.
func withoutComment(line string) string {
	for i := range line {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(line)
}

var (
	optionPattern = regexp.MustCompile(`^(-[A-Za-z]|--[a-z0-9-]+)(?:\s*=\s*|\s+|)(.*)$`)
	indexOptions  = []string{"-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--cert", "--client-cert", "--pypi-url"}
	hashOption    = regexp.MustCompile(`\s--hash(?:=|\s+)(\S*)`)
	hashPattern   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func (r *requirements) line(text string) error {
	switch {
	case text == "":
		return nil
	case strings.Contains(text, "${"):
		return fmt.Errorf("%q: variables are not supported: write the value", text)
	case text[0] == '-':
		return r.option(text)
	}
	hashes, err := hashesOf(text)
	if err != nil {
		return err
	}
	name := strings.TrimSpace(hashOption.ReplaceAllString(text, ""))
	switch {
	case strings.Contains(name, " --"):
		return fmt.Errorf("%q: only the option --hash is supported in a requirement: remove other options", text)
	case len(name) > 512 || !requirementPattern.MatchString(name):
		return fmt.Errorf("bad requirement %q: write for example \"lxml==5.3.0\"; URLs and paths are not supported: packages come from the indexes in the host's configuration", name)
	case hashes != nil && !strings.Contains(name, "=="):
		return fmt.Errorf("%q has a hash but no version: pin the version with ==", name)
	}
	r.list = append(r.list, requirement{name, hashes})
	return nil
}

// hashesOf returns the hashes of a requirement; nil for none.
func hashesOf(text string) (hashes []string, err error) {
	for _, m := range hashOption.FindAllStringSubmatch(text, -1) {
		if !hashPattern.MatchString(m[1]) {
			return nil, fmt.Errorf("hash %q: only sha256 is supported, as in the output of pip-compile --generate-hashes and uv export", m[1])
		}
		hashes = append(hashes, m[1])
	}
	return hashes, nil
}

func (r *requirements) option(text string) error {
	m := optionPattern.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("bad option %q", text)
	}
	name, value := m[1], strings.Trim(m[2], `"'`)
	switch name {
	case "-r", "--requirement":
		r.files = append(r.files, value)
	case "-c", "--constraint":
		r.constraints = append(r.constraints, value)
	case "--require-hashes": // FRE always does
		return nil
	case "--prefer-binary": // FRE always does: it takes the newest version that has a wheel
		return nil
	case "--pre":
		r.pre = true
		return nil
	case "--only-binary":
		return r.binary.set(name, value, &r.binary.only, &r.binary.no)
	case "--no-binary":
		return r.binary.set(name, value, &r.binary.no, &r.binary.only)
	default:
		return refusedOption(name)
	}
	if value == "" {
		return fmt.Errorf("%s names no file", name)
	}
	return nil
}

func refusedOption(name string) error {
	if slices.Contains(indexOptions, name) {
		return fmt.Errorf("%s: packages come from the indexes in the engine's configuration: remove the line, and name an index for each package in packages.pip_index", name)
	}
	return fmt.Errorf("%s is not supported: remove the line", name)
}

// request is a template's whole request to the package indexes.
type request struct {
	list        []requirement
	constraints []requirement
	complete    bool // list is the whole answer: an export of uv.lock
	pre         bool // pre-releases count as well
	binary      formats
}

// formats lists the packages restricted to wheels (only) or to source distributions (no): normal
// names, ":all:". It is pip's FormatControl.
type formats struct{ only, no []string }

const allPackages = ":all:"

// set adds the value of --only-binary or --no-binary to its list. A package is in at most one list.
func (f *formats) set(option, value string, to, other *[]string) error {
	if value == "" {
		return fmt.Errorf("%s names no package: write :none:, %s or a package", option, allPackages)
	}
	for name := range strings.SplitSeq(value, ",") {
		switch name = strings.TrimSpace(name); {
		case name == ":none:":
			*to = nil
			continue
		case name == allPackages:
			*to, *other = nil, nil
		case !packageName.MatchString(name):
			return fmt.Errorf("%s %q: write names of packages with commas between them, or %s, or :none: instead", option, value, allPackages)
		default:
			name = normalName(name)
		}
		*other = slices.DeleteFunc(*other, func(n string) bool { return n == name })
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	return nil
}

// add appends another file's lists.
func (f *formats) add(more formats) {
	f.only = append(f.only, more.only...)
	f.no = append(f.no, more.no...)
}

// says reports whether list, one of f's, has a package: its own name counts before ":all:".
func (f *formats) says(list, other []string, name string) bool {
	name = normalName(name)
	return slices.Contains(list, name) || slices.Contains(list, allPackages) && !slices.Contains(other, name)
}

func (f *formats) onlyBinary(name string) bool { return f.says(f.only, f.no, name) }
func (f *formats) noBinary(name string) bool   { return f.says(f.no, f.only, name) }

var packageName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// requestOf reads file and follows -r and -c. read returns the content of a file by its path below
// the template's directory.
func requestOf(file string, src []byte, read func(string) ([]byte, error)) (*request, error) {
	var out request
	seen := map[string]bool{}
	var add func(file string, src []byte, constraint bool) error
	add = func(file string, src []byte, constraint bool) error {
		key := fmt.Sprint(constraint, path.Clean(file))
		if seen[key] {
			return nil
		}
		seen[key] = true
		r, err := parseRequirements(file, src)
		if err != nil {
			return err
		}
		out.pre = out.pre || r.pre
		out.binary.add(r.binary)
		follow := func(names []string, constraint bool) error {
			for _, name := range names {
				if name, err = below(file, name); err != nil {
					return err
				}
				src, err := read(name)
				if errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("%s names the missing file %s: the file must be below the template's directory", file, name)
				}
				if err != nil {
					return err
				}
				if err := add(name, src, constraint); err != nil {
					return err
				}
			}
			return nil
		}
		if constraint {
			out.constraints = append(out.constraints, r.list...)
		} else {
			out.list = append(out.list, r.list...)
		}
		return errors.Join(follow(r.files, constraint), follow(r.constraints, true))
	}
	return &out, add(file, src, false)
}

// below returns the path of a file that file names, below the template's directory.
func below(file, name string) (string, error) {
	at := path.Join(path.Dir(file), name)
	if path.IsAbs(name) || strings.Contains(name, "://") || at == ".." || strings.HasPrefix(at, "../") {
		return "", fmt.Errorf("%s names %s: only files below the template's directory can be read", file, name)
	}
	return at, nil
}

// hashes returns the request's allowed hashes by normal name; nil without any.
func (r *request) hashes() map[string][]string {
	var out map[string][]string
	for _, q := range slices.Concat(r.list, r.constraints) {
		if q.hashes == nil {
			continue
		}
		if out == nil {
			out = map[string][]string{}
		}
		name := normalName(requirementPattern.FindStringSubmatch(q.text)[1])
		out[name] = append(out[name], q.hashes...)
	}
	return out
}

// honour keeps only the hashes that the request allows. As with pip, a single requirement with
// hashes makes hashes mandatory for all packages.
func (r *request) honour(packages []image.LockedPackage, file string) error {
	allowed := r.hashes()
	if allowed == nil {
		return nil
	}
	for i := range packages {
		p := &packages[i]
		want := allowed[normalName(p.Name)]
		if want == nil {
			return &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf(
				"%s has hashes, but none for the dependency %s %s: write the file with pip-compile --generate-hashes or uv pip compile --generate-hashes", file, p.Name, p.Version)}
		}
		kept := slices.DeleteFunc(slices.Clone(p.Hashes), func(h string) bool { return !slices.Contains(want, h) })
		if len(kept) == 0 {
			return &template.FieldError{Field: "packages.pip", Message: fmt.Sprintf(
				"hash mismatch: no file of %s %s on the index has a hash from %s (nothing was kept): if the author republished the package, update the hashes", p.Name, p.Version, file)}
		}
		p.Hashes = kept
	}
	return nil
}

// text formats the list as a file for uv.
func text(list []requirement) []byte {
	var b strings.Builder
	for _, q := range list {
		b.WriteString(q.text + "\n")
	}
	return []byte(b.String())
}

var nameRuns = lazyregexp.New(`[-_.]+`)

// normalName returns a package's name as PEP 503 compares names.
func normalName(s string) string { return nameRuns.ReplaceAllString(strings.ToLower(s), "-") }
