package image

import (
	"fmt"
	"path"
	"strings"

	"github.com/fre-engine/fre/store"
)

// overlap is a path that two packages write with different content.
type overlap struct {
	path          string
	first, second string // names of the packages; the image has the file of second
}

// overlaps returns the first most overlaps of an image's packages, in the order of the parts. It
// skips bytecode, because bytecode follows its source.
func overlaps(parts []store.Part, tree func(store.Digest) (*store.Tree, error), most int) (found []overlap, err error) {
	type file struct {
		owner  string
		digest store.Digest
	}
	files := map[string]file{}
	for _, p := range parts {
		if shared(p) || p.Kind == "code" {
			continue
		}
		t, err := tree(p.Tree)
		if err != nil {
			return nil, err
		}
		for i := range t.Entries {
			e := &t.Entries[i]
			if e.Kind != store.KindFile || e.Aside || strings.HasSuffix(e.Path, ".pyc") {
				continue
			}
			at := path.Join(p.Prefix, e.Path)
			before, ok := files[at]
			files[at] = file{p.Name, e.Digest}
			if ok && before.owner != p.Name && before.digest != e.Digest {
				if found = append(found, overlap{at, before.owner, p.Name}); len(found) == most {
					return found, nil
				}
			}
		}
	}
	return found, nil
}

// warnOverlaps reports files that one package overwrites with its own.
func (b *Builder) warnOverlaps(of *buildOf, img *store.Image) error {
	found, err := overlaps(img.Parts, b.Store.Tree, mostMissing)
	for _, o := range found {
		of.report(Progress{Step: "warning", Name: o.path, Message: fmt.Sprintf(
			"packages %s and %s contain the file with different content: the image has the file of %s; remove a package, or use versions without the overlap", o.first, o.second, o.second)})
	}
	return err
}
