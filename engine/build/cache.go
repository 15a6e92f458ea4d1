package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

func (l *Library) cachePath() string { return filepath.Join(l.cfg.StateDir, "cache") }

func (l *Library) openCache() error {
	v, err := l.cfg.Volumes.Attach(l.cachePath(), volume.Limits{})
	if err != nil {
		return fmt.Errorf("cache of builds: %w", err)
	}
	l.cache.volume.Store(v)
	_, err = v.Usage() // counts the files now if the volume counts by a walk
	return err
}

// CacheUsage returns the disk use of the cache; zero if the cache is empty.
func (l *Library) CacheUsage() (volume.Usage, error) {
	u, err := l.cache.volume.Load().Usage()
	if errors.Is(err, fs.ErrClosed) { // the cache is being removed, or the engine stops
		return volume.Usage{}, nil
	}
	if err != nil || u.Inodes <= 1 { // only the directory itself
		return volume.Usage{AsOf: u.AsOf}, err
	}
	return u, nil
}

// gcCache removes the whole cache and returns the freed space; with dry it only counts. Error:
// store.ErrInUse while a build runs.
func (l *Library) gcCache(ctx context.Context, dry bool) (store.Swept, error) {
	if !l.cache.mu.TryLock() {
		return store.Swept{}, fmt.Errorf("download cache: %w by a running build: try again after the build", store.ErrInUse)
	}
	defer l.cache.mu.Unlock()
	var gone store.Swept
	used, err := volume.Walk(ctx, l.cachePath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return gone, err
	}
	if used.Inodes > 1 {
		gone.Inodes, gone.Bytes = int(used.Inodes-1), used.Bytes
	}
	if dry {
		return gone, nil
	}
	return gone, errors.Join(l.cfg.Volumes.Remove(l.cachePath()), l.openCache())
}
