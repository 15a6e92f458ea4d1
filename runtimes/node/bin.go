package node

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// Programs makes node_modules/.bin, as npm does: a link for each program of the packages at the top
// ("bin" in npm help package-json).
func (r Site) Programs(ctx context.Context, step *image.Step, lock *image.Lock) (part store.Part, dir string, err error) {
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		return store.Part{}, "", nil
	}
	links, err := programLinks(locked.PackageLock)
	if err != nil || len(links) == 0 {
		return store.Part{}, "", err
	}
	w, err := step.Store.Create()
	if err != nil {
		return store.Part{}, "", err
	}
	defer w.Abort()
	for name, target := range links {
		if err := w.Symlink(name, target, install.Time); err != nil {
			return store.Part{}, "", err
		}
	}
	tree, err := w.Commit(ctx)
	return store.Part{Kind: "links", Name: "npm programs", Tree: tree, Prefix: programsAt}, programsAt, err
}

// programLinks reads the links from a package-lock.json: name → target.
func programLinks(raw json.RawMessage) (map[string]string, error) {
	var l struct {
		ByPlace map[string]struct {
			Bin json.RawMessage `json:"bin"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("%s: package_lock: %w", image.LockFile, err)
	}
	links := map[string]string{}
	for place, p := range l.ByPlace {
		name, ok := strings.CutPrefix(place, "node_modules/")
		if !ok || strings.Contains(name, "node_modules/") || len(p.Bin) == 0 {
			continue
		}
		bin, err := commands(name, p.Bin)
		if err != nil {
			return nil, fmt.Errorf("%s: package_lock: bin of %s: %w", image.LockFile, place, err)
		}
		for program, file := range bin {
			links[program] = path.Join("..", name, file)
		}
	}
	return links, nil
}
