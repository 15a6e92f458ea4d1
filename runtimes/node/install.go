package node

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// installPlain returns the parts of places with the files of their archives. It fetches the
// packages that the store lacks.
func (s *site) installPlain(ctx context.Context, l *packageLock, places []string) ([]store.Part, error) {
	parts, missing := s.find(l, places)
	if len(missing) == 0 {
		return parts, nil
	}
	if err := image.Offline(ctx, "packages.npm: "+strings.Join(missing, ", ")); err != nil {
		return nil, err
	}
	for _, place := range places {
		if p := l.ByPlace[place]; !p.here() {
			return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf(
				"%s %s does not support the machine (linux, %s, glibc), only the os, cpu or libc %s: remove the package, or move it to optionalDependencies",
				p.name(place), p.Version, architecture(), strings.Join(slices.Concat(p.OS, p.CPU, p.Libc), ", "))}
		}
	}
	return s.install(ctx, l, places)
}

// find returns the parts that the store has, and the names of missing packages.
func (s *site) find(l *packageLock, places []string) (parts []store.Part, missing []string) {
	for _, place := range places {
		p := l.ByPlace[place]
		part, ok := s.step.Store.Part(p.key(place))
		if !ok {
			missing = append(missing, p.name(place)+" "+p.Version)
		}
		part.Prefix, part.Hash = place, p.hash() // the same version may be in several places
		parts = append(parts, part)
	}
	return parts, missing
}

// installers is the number of packages that are fetched and unpacked at once.
const installers = 8

// install fetches and unpacks the packages that the store lacks, each version once, and returns the
// parts of all places.
func (s *site) install(ctx context.Context, l *packageLock, places []string) ([]store.Part, error) {
	from, err := newRegistries(s.step.Settings)
	if err != nil {
		return nil, err
	}
	defer from.close()
	s.step.Report(image.Progress{Step: "packages", Message: "install"})
	var (
		mu      sync.Mutex
		made    = map[string]store.Part{}
		counter = install.NewCounter()
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(installers)
	asked := map[string]bool{}
	for _, place := range places {
		key := l.ByPlace[place].key(place)
		if asked[key] {
			continue
		}
		asked[key] = true
		group.Go(func() error {
			part, ok := s.step.Store.Part(key)
			if !ok {
				var err error
				if part, err = s.put(ctx, from, counter, place, l.ByPlace[place]); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			made[key] = part
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	parts := make([]store.Part, len(places))
	for i, place := range places {
		p := l.ByPlace[place]
		parts[i] = made[p.key(place)]
		parts[i].Prefix, parts[i].Hash = place, p.hash()
	}
	return parts, nil
}

// put fetches and unpacks one package version and stores it as a part.
func (s *site) put(ctx context.Context, from *registries, counter *install.Counter, place string, p lockedPackage) (store.Part, error) {
	shown := p.name(place) + " " + p.Version
	fail := func(err error) error { return fmt.Errorf("packages.npm: %s: %w", shown, err) }
	f, err := os.CreateTemp(s.step.Scratch, "npm-")
	if err != nil {
		return store.Part{}, fail(err)
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	if err := from.archive(ctx, p.name(place), p.Version, p.Integrity, f); err != nil {
		return store.Part{}, fetched(err, shown)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return store.Part{}, fail(err)
	}
	w, err := s.step.Store.Create()
	if err != nil {
		return store.Part{}, fail(err)
	}
	defer w.Abort()
	if _, err := unpack(f, p.programs(), counter.Package(shown), w); err != nil {
		return store.Part{}, install.Unpacked(err, "npm", shown)
	}
	part := p.part(place)
	if part.Tree, err = w.Commit(ctx); err != nil {
		return store.Part{}, fail(err)
	}
	if err := s.step.Store.PutPart(ctx, p.key(place), part); err != nil {
		return store.Part{}, fail(err)
	}
	s.step.Report(image.Progress{Step: "packages", Name: shown, End: true})
	return part, nil
}
