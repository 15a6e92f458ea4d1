package node

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

var programPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Programs makes node_modules/.bin, as npm does: a link for each program of the packages at the top
// ("bin" in npm help package-json).
func (r Site) Programs(ctx context.Context, step *image.Step, lock *image.Lock) (part store.Part, dir string, err error) {
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		return store.Part{}, "", nil
	}
	links, err := programs(locked.PackageLock)
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

const programsAt = "node_modules/.bin"

// programs reads the links from a package-lock.json: name → target.
func programs(raw json.RawMessage) (map[string]string, error) {
	var l struct {
		Packages map[string]struct {
			Bin json.RawMessage `json:"bin"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("%s: package_lock: %w", image.LockFile, err)
	}
	links := map[string]string{}
	for place, p := range l.Packages {
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

// commands returns the programs in bin of the package name, with their files.
func commands(name string, bin json.RawMessage) (map[string]string, error) {
	all := map[string]string{}
	if err := json.Unmarshal(bin, &all); err != nil {
		var one string
		if err := json.Unmarshal(bin, &one); err != nil {
			return nil, err
		}
		all = map[string]string{path.Base(name): one}
	}
	out := map[string]string{}
	for program, file := range all {
		// A file elsewhere is not a program of the package.
		file = path.Clean(file)
		if programPattern.MatchString(program) && !path.IsAbs(file) && file != ".." && !strings.HasPrefix(file, "../") {
			out[program] = file
		}
	}
	return out, nil
}
