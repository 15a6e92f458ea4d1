package image

import (
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// warnMissing tells of shared libraries that compiled files of packages and code need and
// that no file of the image is, with what brings them: they would fail at a function's first
// call. One that is anywhere in the image counts as found, since programs load libraries by
// their own ways as well.
func (b *Builder) warnMissing(of *buildOf, img *store.Image) error {
	entries, err := b.Store.Entries(img)
	if err != nil {
		return err
	}
	names := make(map[string]bool, len(entries))
	for i := range entries {
		names[path.Base(entries[i].Path)] = true
	}
	missing := map[string]string{} // library: the first file that needs it
	for _, p := range img.Parts {
		if shared(p) {
			continue
		}
		tree, err := b.Store.Tree(p.Tree)
		if err != nil {
			return err
		}
		for i := range tree.Entries {
			if e := &tree.Entries[i]; maybeELF(e) {
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
		of.report(Event{Step: "warning", Name: missing[library], Message: fmt.Sprintf(
			"needs %s, which is not in the image: where it is used, add libs: [%s]%s", library, library, ofPackage(library))})
	}
	return nil
}

// mostMissing is more libraries than somebody adds one by one.
const mostMissing = 20

func maybeELF(e *store.Entry) bool {
	base := path.Base(e.Path)
	return e.Kind == store.KindFile && e.Size > 64 && (e.Mode&0o111 != 0 || strings.HasSuffix(base, ".node") || strings.HasSuffix(base, ".so") || strings.Contains(base, ".so."))
}

// addMissing adds what a file needs and names do not have. Files for another C library, which
// packages bring beside those for this one, need nothing; nor is anybody told of the driver
// of a graphics card, which is the machine's.
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
		return nil // it is no ELF file, or one that the loader will refuse
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

var soname = regexp.MustCompile(`^(.+)\.so\.([0-9].*)$`)

// ofPackage says which Debian package has a library, by Debian's rule for names (Policy 8.1);
// the build that is asked for it by libs looks into the archive's list of files as well.
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
