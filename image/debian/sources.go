package debian

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one suite of one archive; see sources.list(5).
type Source struct {
	URI        string   // "http://…/debian", "file:/srv/mirror"
	Suite      string   // "bookworm-updates"
	Components []string // "main"

	// Keyrings are files, binary or armored, whose keys may sign the suite; so may the keys in the
	// armored block Keys. Fingerprints, when given, restrict both (hexadecimal, upper case).
	Keyrings     []string
	Keys         []byte
	Fingerprints []string

	AllowExpired bool // Check-Valid-Until: no
}

// release is the suite's release: "bookworm" for "bookworm-updates".
func (s *Source) release() string {
	codename, _, _ := strings.Cut(s.Suite, "-")
	return codename
}

// hostSources reads the apt sources below root for the release itself. It ignores other suites,
// backports and third parties', and leaves out unusable entries with a warning.
func hostSources(root, codename, arch string, log *slog.Logger) ([]Source, error) {
	paths, err := match(root, "etc/apt/sources.list", "etc/apt/sources.list.d/*.list", "etc/apt/sources.list.d/*.sources")
	if err != nil {
		return nil, fmt.Errorf("apt sources: %w", err)
	}
	var out []Source
	var refused []error
	suites := []string{codename, codename + "-updates", codename + "-security"}
	for _, p := range paths {
		entries, err := readEntries(p)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !slices.Contains(suites, e.Suite) || !e.serves(arch) {
				continue
			}
			if err := e.resolve(root); err != nil {
				log.Warn("apt source left out", "file", p, "suite", e.Suite, "error", err)
				refused = append(refused, fmt.Errorf("%s: %s: %w", p, e.Suite, err))
				continue
			}
			if !slices.ContainsFunc(out, e.same) {
				out = append(out, e.Source)
			}
		}
	}
	if !slices.ContainsFunc(out, func(s Source) bool { return s.Suite == codename }) {
		return nil, errors.Join(append([]error{fmt.Errorf("apt sources: none usable for %s below %s", codename, filepath.Join(root, "etc/apt"))}, refused...)...)
	}
	return out, nil
}

// match returns the files below root that match a pattern, in the order of the patterns.
func match(root string, patterns ...string) ([]string, error) {
	var paths []string
	for _, p := range patterns {
		m, err := filepath.Glob(filepath.Join(root, p))
		if err != nil {
			return nil, err
		}
		paths = append(paths, m...)
	}
	return paths, nil
}

// readEntries parses a file of apt sources. A file that has gone since the listing has none.
func readEntries(path string) ([]entry, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("apt sources: %w", err)
	}
	parse := parseList
	if strings.HasSuffix(path, ".sources") {
		parse = parseSources
	}
	entries, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("apt sources: %s: %w", path, err)
	}
	return entries, nil
}

// entry is an unresolved Source, as written in the file.
type entry struct {
	Source
	archs    []string
	signedBy string
	trusted  bool
}

// serves reports whether apt uses the entry on the architecture.
func (e *entry) serves(arch string) bool {
	return len(e.archs) == 0 || slices.Contains(e.archs, arch)
}

// same reports whether s names the same index files.
func (e *entry) same(s Source) bool {
	return s.URI == e.URI && s.Suite == e.Suite && slices.Equal(s.Components, e.Components)
}

// resolve refuses unusable entries and finds the keyrings.
func (e *entry) resolve(root string) error {
	if e.trusted {
		return errors.New("marked trusted without a signature: not supported")
	}
	if len(e.Components) == 0 {
		return errors.New("flat archives are not supported")
	}
	if err := e.address(root); err != nil {
		return err
	}
	return e.findKeys(root)
}

// address replaces a list of mirrors by the first and refuses unknown schemes.
func (e *entry) address(root string) error {
	if rest, ok := strings.CutPrefix(e.URI, "mirror+file:"); ok {
		first, err := firstMirror(filepath.Join(root, rest))
		if err != nil {
			return err
		}
		e.URI = first
	}
	u, err := url.Parse(e.URI)
	if err != nil {
		return errors.New("URI does not parse") // the URI may hold a password
	}
	switch u.Scheme {
	case "http", "https", "file":
	default:
		return fmt.Errorf("scheme %q is not supported (http, https, file and mirror+file are)", u.Scheme)
	}
	e.URI = strings.TrimRight(e.URI, "/")
	return nil
}

// findKeys sets the keys of Signed-By, or else the keyrings that apt trusts for every source.
func (e *entry) findKeys(root string) error {
	if strings.Contains(e.signedBy, "BEGIN PGP PUBLIC KEY BLOCK") {
		e.Keys = []byte(strings.TrimSpace(e.signedBy) + "\n")
		return nil
	}
	for _, s := range strings.FieldsFunc(e.signedBy, func(r rune) bool { return strings.ContainsRune(", \n\t", r) }) {
		if strings.HasPrefix(s, "/") {
			e.Keyrings = append(e.Keyrings, filepath.Join(root, s))
		} else {
			e.Fingerprints = append(e.Fingerprints, strings.ToUpper(strings.TrimSuffix(s, "!")))
		}
	}
	if len(e.Keyrings) > 0 {
		return nil
	}
	var err error
	e.Keyrings, err = match(root, "etc/apt/trusted.gpg", "etc/apt/trusted.gpg.d/*.gpg", "etc/apt/trusted.gpg.d/*.asc", "usr/share/keyrings/debian-archive-keyring.gpg", "usr/share/keyrings/ubuntu-archive-keyring.gpg")
	if err != nil {
		return err
	}
	if len(e.Keyrings) == 0 {
		return errors.New("no keyring found: install debian-archive-keyring or ubuntu-keyring")
	}
	return nil
}

// firstMirror returns the first address of a mirror list; see apt-transport-mirror(1).
func firstMirror(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("mirror list: %w", err)
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			return f[0], nil
		}
	}
	return "", fmt.Errorf("mirror list %s names no mirror", path)
}

// parseList reads the one-line format:
//
//	deb [signed-by=/path arch=amd64] URI suite component…
func parseList(b []byte) ([]entry, error) {
	var out []entry
	n := 0
	for l := range bytes.Lines(b) {
		n++
		line, _, _ := strings.Cut(string(l), "#")
		line = strings.TrimSpace(line)
		kind, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		if line == "" || kind == "deb-src" {
			continue
		}
		if kind != "deb" {
			return nil, fmt.Errorf("line %d: unknown type %q", n, kind)
		}
		var e entry
		rest = strings.TrimSpace(rest)
		if inner, ok := strings.CutPrefix(rest, "["); ok {
			options, after, ok := strings.Cut(inner, "]")
			if !ok {
				return nil, fmt.Errorf("line %d: options are not closed by ]", n)
			}
			for o := range strings.FieldsSeq(options) {
				k, v, _ := strings.Cut(o, "=")
				e.option(strings.TrimSuffix(strings.ToLower(k), "+"), v)
			}
			rest = after
		}
		// "cdrom:[Debian 12]/" holds blanks in brackets.
		if inner, ok := strings.CutPrefix(strings.TrimSpace(rest), "cdrom:["); ok {
			_, after, _ := strings.Cut(inner, "]")
			rest = "cdrom:" + after
		}
		f := strings.Fields(rest)
		if len(f) < 2 {
			return nil, fmt.Errorf("line %d: want an address and a suite", n)
		}
		e.URI, e.Suite, e.Components = f[0], f[1], f[2:]
		out = append(out, e)
	}
	return out, nil
}

// parseSources reads the deb822 format.
func parseSources(b []byte) ([]entry, error) {
	var out []entry
	err := readParagraphs(bytes.NewReader(b), nil, func(p paragraph) error {
		if !slices.Contains(strings.Fields(p["types"]), "deb") || no(p["enabled"]) {
			return nil
		}
		uris, suites := strings.Fields(p["uris"]), strings.Fields(p["suites"])
		if len(uris) == 0 || len(suites) == 0 {
			return errors.New("want URIs and Suites")
		}
		for _, u := range uris {
			for _, s := range suites {
				e := entry{Source: Source{URI: u, Suite: s, Components: strings.Fields(p["components"])}}
				e.option("arch", strings.Join(strings.Fields(p["architectures"]), ","))
				e.option("signed-by", p["signed-by"])
				e.option("trusted", p["trusted"])
				e.option("check-valid-until", p["check-valid-until"])
				out = append(out, e)
			}
		}
		return nil
	})
	return out, err
}

func (e *entry) option(key, value string) {
	if value == "" {
		return
	}
	switch key {
	case "arch":
		e.archs = append(e.archs, strings.Split(value, ",")...)
	case "signed-by":
		e.signedBy = value
	case "trusted":
		e.trusted = !no(value)
	case "check-valid-until":
		e.AllowExpired = no(value)
	}
}
