package image

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// warnMissing reports shared libraries that compiled files of packages and code need, but the image
// lacks, and the Debian packages with them. Without the libraries a function would fail at its
// first call. A library anywhere in the image counts as present, because programs may load
// libraries in their own ways.
func (b *Builder) warnMissing(of *buildOf, img *store.Image) error {
	entries, err := b.Store.Entries(img)
	if err != nil {
		return err
	}
	names := make(map[string]bool, len(entries))
	for i := range entries {
		names[path.Base(entries[i].Path)] = true
	}
	addons := addonsOf(b.Sites)
	missing := map[string]string{} // library → first file that needs it
	for _, p := range img.Parts {
		if shared(p) {
			continue
		}
		tree, err := b.Store.Tree(p.Tree)
		if err != nil {
			return err
		}
		for i := range tree.Entries {
			if e := &tree.Entries[i]; maybeELF(e, addons) {
				if err := b.addMissing(path.Join(p.Prefix, e.Path), e, names, missing); err != nil {
					return err
				}
			}
		}
	}
	libraries := make([]string, 0, len(missing))
	for library := range missing {
		libraries = append(libraries, library)
	}
	slices.Sort(libraries)
	for _, library := range libraries[:min(len(libraries), mostMissing)] {
		of.report(Progress{Step: "warning", Name: missing[library], Message: fmt.Sprintf(
			"needs %s, missing in the image: if the function uses the library, add libs: [%s]%s", library, library, ofPackage(library))})
	}
	return nil
}

// mostMissing exceeds the number of libraries that a user adds one by one.
const mostMissing = 20

// addonsOf returns the extensions of shared libraries beside ".so".
func addonsOf(sites []Site) []string {
	var addons []string
	for _, site := range sites {
		if p, ok := site.(Packaged); ok {
			addons = append(addons, p.Packaging().Addons...)
		}
	}
	return addons
}

func maybeELF(e *store.Entry, addons []string) bool {
	base := path.Base(e.Path)
	return e.Kind == store.KindFile && e.Size > 64 && (e.Mode&0o111 != 0 || slices.Contains(addons, path.Ext(base)) || strings.HasSuffix(base, ".so") || strings.Contains(base, ".so."))
}

// addMissing adds the libraries that a file needs and names lacks. Files for another C library,
// which packages bring beside the files for this one, are skipped. So are drivers of graphics
// cards, which belong to the machine.
func (b *Builder) addMissing(at string, e *store.Entry, names map[string]bool, missing map[string]string) error {
	f, err := b.Store.OpenFile(e)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r, ok := io.Reader(f).(io.ReaderAt)
	if !ok {
		return nil
	}
	needs, err := debian.Needs(at, r)
	if err != nil {
		return nil // not an ELF file, or a file that the loader will refuse
	}
	var lacks []string
	for _, places := range needs {
		library := path.Base(places[0])
		switch {
		case strings.Contains(library, "musl"):
			return nil
		case names[library] || strings.HasPrefix(library, "libcuda.so") || strings.HasPrefix(library, "libnvidia-"):
		default:
			lacks = append(lacks, library)
		}
	}
	for _, library := range lacks {
		if missing[library] == "" {
			missing[library] = at
		}
	}
	return nil
}

var soname = lazyregexp.New(`^(.+)\.so\.([0-9].*)$`)

// ofPackage guesses the Debian package of a library by Debian's rule for names (Policy 8.1). A
// build with libs also looks into the archive's list of files.
func ofPackage(library string) string {
	m := soname.FindStringSubmatch(library)
	if m == nil {
		return ""
	}
	name := strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")
	if last := name[len(name)-1]; last >= '0' && last <= '9' {
		name += "-"
	}
	return " (Debian's package " + name + m[2] + ")"
}
