package debian

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"pault.ag/go/debian/version"
)

// Package is one version of a package, as the archive's index describes it.
type Package struct {
	Name, Version, Architecture string
	Filename                    string // below the source's URI
	Size                        int64  // of the .deb, bytes
	SHA256                      string // of the .deb, hexadecimal
	InstalledSize               int64  // bytes of the installed files; 0 if the index leaves it out

	uri      string // of its source
	parsed   version.Version
	depends  string // Pre-Depends and Depends, unparsed
	provides string
	priority int // 0 required … 4 extra
}

func parsePackages(r io.Reader, uri, arch string) ([]*Package, error) {
	want := map[string]bool{}
	for _, f := range []string{"package", "version", "architecture", "filename", "size", "sha256", "depends", "pre-depends", "provides", "priority", "installed-size"} {
		want[f] = true
	}
	var out []*Package
	err := readParagraphs(r, want, func(p paragraph) error {
		if p["architecture"] != arch && p["architecture"] != "all" {
			return nil
		}
		k, err := parsePackage(p, uri)
		if err != nil {
			return err
		}
		out = append(out, k)
		return nil
	})
	return out, err
}

func parsePackage(p paragraph, uri string) (*Package, error) {
	k := &Package{
		Name: p["package"], Version: p["version"], Architecture: p["architecture"],
		Filename: p["filename"], SHA256: strings.ToLower(p["sha256"]),
		uri: uri, provides: p["provides"],
		depends: strings.Trim(p["pre-depends"]+", "+p["depends"], ", "),
	}
	k.priority = slices.Index([]string{"required", "important", "standard", "optional"}, p["priority"])
	if k.priority < 0 {
		k.priority = 4
	}
	var err error
	if !validName(k.Name) {
		return nil, fmt.Errorf("bad package name %.80q", k.Name)
	}
	if k.parsed, err = parseVersion(k.Version); err != nil {
		return nil, fmt.Errorf("package %s: version %.80q: %w", k.Name, k.Version, err)
	}
	if k.Size, err = strconv.ParseInt(p["size"], 10, 64); err != nil || k.Size < 0 {
		return nil, fmt.Errorf("package %s: bad size %.80q", k.Name, p["size"])
	}
	if k.InstalledSize, err = parseInstalledSize(p["installed-size"]); err != nil {
		return nil, fmt.Errorf("package %s: %w", k.Name, err)
	}
	if b, err := hex.DecodeString(k.SHA256); err != nil || len(b) != 32 {
		return nil, fmt.Errorf("package %s: bad sha256 %.80q", k.Name, k.SHA256)
	}
	if !filepath.IsLocal(k.Filename) {
		return nil, fmt.Errorf("package %s: bad file name %.80q", k.Name, k.Filename)
	}
	return k, nil
}

// parseInstalledSize turns KiB (deb-substvars(5)) into bytes. An empty text is 0.
func parseInstalledSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 40)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("bad installed size %.80q", s)
	}
	return n << 10, nil
}

// parseVersion refuses versions that dpkg refuses and version.Parse accepts: no upstream version
// before a hyphen, or no revision behind the last hyphen.
func parseVersion(s string) (version.Version, error) {
	v, err := version.Parse(s)
	switch {
	case err != nil:
	case v.Version == "":
		err = errors.New("no upstream version")
	case v.Revision == "" && strings.HasSuffix(strings.TrimSpace(s), "-"):
		err = errors.New("no revision behind the hyphen")
	}
	return v, err
}

// validName follows Debian policy 5.6.1, and allows upper case as some archives do.
func validName(s string) bool {
	return s != "" && len(s) < 256 && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789+-.") == "" &&
		!strings.ContainsAny(s[:1], "+-.")
}

// debianArch is Debian's name of this machine's architecture.
func debianArch() string {
	if a := map[string]string{"arm": "armhf", "386": "i386", "ppc64le": "ppc64el"}[runtime.GOARCH]; a != "" {
		return a
	}
	return runtime.GOARCH
}
