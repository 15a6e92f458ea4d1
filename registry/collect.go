package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// CollectOptions say what [Registry.Collect] removes.
type CollectOptions struct {
	// Untagged has manifests removed as well that have no tag, that no index or
	// subject which stays refers to.
	Untagged bool

	// DryRun removes nothing and tells what would go.
	DryRun bool
}

// Collected is what a collection has freed.
type Collected struct {
	Repositories int   // that nothing was left in
	Manifests    int   // without a tag
	Blobs        int   // that no manifest of a repository refers to, in each
	Uploads      int   // unfinished
	Files        int   // of content
	Bytes        int64 // of content, manifests and uploads
}

// Collect frees what nothing refers to and nobody asked about for the grace period:
//
//	start := now; cutoff := start - grace
//	for each repository:  mark what its manifests refer to
//	                      the others of its blobs, if they are older than cutoff: unlink
//	for all content:      if no repository has it, and it is older than cutoff: unlink
//
// It is safe beside everything else. Whoever relies on a file (is told that it is
// there, refers to it, mounts it) sets its time if that is older than half the grace
// period, holding mu for reading until what refers to it is there. The start is taken
// with mu held for writing: what was relied on before is seen by the marking, what is
// later is younger than the cutoff, and right before a removal that is looked at again,
// with mu held for writing.
//
// Two collections do not harm each other, but take the same time twice. When ctx ends,
// so does the collection, with what it has freed until then.
func (r *Registry) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	var did Collected
	if r.cfg.ReadOnly && !o.DryRun {
		return did, errors.New("collect: the registry is read-only")
	}
	r.mu.Lock()
	now, err := r.fileTime()
	r.mu.Unlock()
	if err != nil {
		return did, fmt.Errorf("collect: %w", err)
	}
	c := &collection{Registry: r, CollectOptions: o, cutoff: now.Add(-r.cfg.Grace), kept: make(map[string]struct{})}
	err = c.run(ctx)
	if r.metrics.gcBytes != nil && !o.DryRun {
		r.metrics.gcBytes.Add(float64(c.did.Bytes))
	}
	if err != nil {
		return c.did, fmt.Errorf("collect: %w", err)
	}
	return c.did, nil
}

// fileTime is now by the clock that gives files their times, which lags a little.
func (r *Registry) fileTime() (time.Time, error) {
	if r.cfg.ReadOnly {
		return time.Now(), nil
	}
	if err := r.root.WriteFile(path.Join(tmpDir, "now"), []byte("now"), 0o644); err != nil {
		return time.Time{}, err
	}
	info, err := r.root.Stat(path.Join(tmpDir, "now"))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// collection is a run of Collect.
type collection struct {
	*Registry
	CollectOptions
	cutoff time.Time
	kept   map[string]struct{} // digests of content that repositories have, as digest.key
	did    Collected
}

// key is a digest in few bytes.
func (d digest) key() string { return d.algorithm[3:4] + d.hex[:32] }

func (c *collection) run(ctx context.Context) error {
	if err := c.collectUploads(); err != nil {
		return err
	}
	names, err := c.repositories(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.collectRepository(ctx, name); err != nil {
			return fmt.Errorf("repository %s: %w", name, err)
		}
	}
	return c.collectContent(ctx)
}

// repositories returns the names of all, sorted.
func (r *Registry) repositories(ctx context.Context) ([]string, error) {
	var names []string
	var walk func(name string) error
	walk = func(name string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := r.list(path.Join(reposDir, name))
		if err != nil {
			return err
		}
		is := false
		for _, entry := range entries {
			if strings.HasPrefix(entry, "_") {
				is = is || entry != "_referrers"
			} else if err := walk(path.Join(name, entry)); err != nil {
				return err
			}
		}
		if is && name != "" {
			names = append(names, name)
		}
		return nil
	}
	err := walk("")
	slices.Sort(names)
	return names, err
}

// collectUploads ends those to which nothing has come for the grace period.
func (c *collection) collectUploads() error {
	c.uploads.mu.Lock()
	all := make([]*upload, 0, len(c.uploads.byID))
	for _, u := range c.uploads.byID {
		all = append(all, u)
	}
	c.uploads.mu.Unlock()
	for _, u := range all {
		select {
		case u.turn <- struct{}{}:
		default: // at work
			continue
		}
		err := c.collectUpload(u)
		<-u.turn
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *collection) collectUpload(u *upload) error {
	info, err := c.root.Stat(u.file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.ModTime().Before(c.cutoff) {
		return nil
	}
	if err == nil && !c.DryRun {
		err = c.endUpload(u)
	}
	if err != nil {
		return err
	}
	c.did.Uploads++
	c.did.Bytes += info.Size()
	return nil
}

// found is a manifest of a repository.
type found struct {
	digest
	manifest
	size int64
	old  bool
}

// manifests reads all of a repository.
func (c *collection) manifests(ctx context.Context, name string) ([]found, error) {
	var all []found
	return all, c.eachDigest(repoPath(name, "_manifests"), func(d digest) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := c.root.Stat(manifestPath(name, d))
		if err != nil {
			return ignoreMissing(err)
		}
		media, data, err := c.readManifest(name, d)
		if err != nil {
			return ignoreMissing(err)
		}
		m, err := parseManifest(media, data)
		if err != nil {
			return fmt.Errorf("manifest %s: %w", d, err)
		}
		all = append(all, found{d, *m, int64(len(data)), info.ModTime().Before(c.cutoff)})
		return nil
	})
}

// eachDigest calls a function for each file in ALGORITHM/HEX below a directory.
func (c *collection) eachDigest(dir string, call func(digest) error) error {
	for _, algorithm := range []string{sha256Name, sha512Name} {
		names, err := c.list(path.Join(dir, algorithm))
		if err != nil {
			return err
		}
		for _, name := range names {
			d, err := parseDigest(algorithm + ":" + name)
			if err != nil {
				continue // not of the registry's
			}
			if err := call(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// collectRepository removes what its manifests do not refer to. Where one cannot be
// read nothing goes: it may refer to anything.
func (c *collection) collectRepository(ctx context.Context, name string) error {
	gone := make(map[digest]bool)
	all, err := c.manifests(ctx, name)
	if err == nil && c.Untagged {
		gone, err = c.collectManifests(ctx, name, all)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		c.cfg.Log.ErrorContext(ctx, "registry repository not collected", "repository", name, "error", err)
		return c.eachDigest(repoPath(name, "_blobs"), func(d digest) error {
			c.kept[d.key()] = struct{}{}
			return nil
		})
	}
	marked := make(map[string]bool)
	for _, m := range all {
		if !gone[m.digest] {
			for _, desc := range m.descriptors() {
				marked[desc.Digest] = true
			}
		}
	}
	left := len(all) - len(gone)
	err = c.eachDigest(repoPath(name, "_blobs"), func(d digest) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !marked[d.String()] {
			_, removed, err := c.removeOld(markerPath(name, d))
			if err != nil {
				return err
			}
			if removed {
				c.did.Blobs++
				return nil
			}
		}
		left++
		c.kept[d.key()] = struct{}{}
		return nil
	})
	if err != nil || c.DryRun {
		return err
	}
	if err := c.tidyReferrers(name); err != nil {
		return err
	}
	if left == 0 {
		return c.removeRepository(name)
	}
	return nil
}

// removeOld removes a file that is older than the cutoff, and returns its size.
func (c *collection) removeOld(file string) (int64, bool, error) {
	info, err := c.root.Stat(file)
	if err != nil || !info.ModTime().Before(c.cutoff) {
		return 0, false, ignoreMissing(err)
	}
	if c.DryRun {
		return info.Size(), true, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Whoever has come to rely on it meanwhile has set its time.
	if info, err = c.root.Stat(file); err != nil || !info.ModTime().Before(c.cutoff) {
		return 0, false, ignoreMissing(err)
	}
	if err := c.root.Remove(file); err != nil {
		return 0, false, err
	}
	return info.Size(), true, nil
}

// collectManifests removes those that have no tag and that nothing which stays refers
// to, and returns them.
func (c *collection) collectManifests(ctx context.Context, name string, all []found) (map[digest]bool, error) {
	gone, err := c.unreachable(name, all)
	if err != nil || len(gone) == 0 {
		return gone, err
	}
	if !c.DryRun {
		// Again with nobody else at work, for an index that was touched
		// meanwhile keeps what it refers to.
		c.mu.Lock()
		defer c.mu.Unlock()
		if all, err = c.manifests(ctx, name); err != nil {
			return nil, err
		}
		if gone, err = c.unreachable(name, all); err != nil {
			return nil, err
		}
	}
	for _, m := range all {
		if !gone[m.digest] {
			continue
		}
		if !c.DryRun {
			if err := c.root.Remove(manifestPath(name, m.digest)); err != nil {
				return nil, err
			}
		}
		c.did.Manifests++
		c.did.Bytes += m.size
	}
	return gone, nil
}

// unreachable returns the manifests that no tag leads to: by indexes, and from a
// subject to what refers to it. Those younger than the cutoff are reached, too.
func (c *collection) unreachable(name string, all []found) (map[digest]bool, error) {
	tags, err := c.tagsOf(name)
	if err != nil {
		return nil, err
	}
	leads := make(map[digest][]digest)
	var reached []digest
	for _, m := range all {
		for _, desc := range m.Manifests {
			if d, err := parseDigest(desc.Digest); err == nil {
				leads[m.digest] = append(leads[m.digest], d)
			}
		}
		if m.Subject != nil {
			if d, err := parseDigest(m.Subject.Digest); err == nil {
				leads[d] = append(leads[d], m.digest)
			}
		}
		if !m.old || len(tags[m.digest]) > 0 {
			reached = append(reached, m.digest)
		}
	}
	unreachable := make(map[digest]bool)
	for _, m := range all {
		unreachable[m.digest] = true
	}
	for len(reached) > 0 {
		d := reached[len(reached)-1]
		reached = reached[:len(reached)-1]
		if unreachable[d] {
			delete(unreachable, d)
			reached = append(reached, leads[d]...)
		}
	}
	return unreachable, nil
}

// tidyReferrers removes entries whose manifest is gone, and directories without any.
func (c *collection) tidyReferrers(name string) error {
	top := repoPath(name, "_referrers")
	return c.eachDigest(top, func(subject digest) error {
		dir := path.Join(top, subject.path())
		entries, err := c.list(dir)
		if err != nil {
			return err
		}
		c.mu.Lock() // an entry comes before its manifest
		defer c.mu.Unlock()
		left := 0
		for _, entry := range entries {
			algorithm, hex, _ := strings.Cut(entry, "-")
			_, err := c.root.Stat(manifestPath(name, digest{algorithm, hex}))
			if errors.Is(err, fs.ErrNotExist) {
				err = c.remove(path.Join(dir, entry))
			} else {
				left++
			}
			if err != nil {
				return err
			}
		}
		if left == 0 {
			_ = c.root.Remove(dir) // if there is still nothing in it
		}
		return nil
	})
}

// removeRepository removes the directories of a repository that has nothing left, and
// those above it that hold no other.
func (c *collection) removeRepository(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, area := range areas {
		for _, algorithm := range []string{sha256Name, sha512Name, ""} {
			err := c.root.Remove(repoPath(name, area, algorithm))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil // not empty: something has come
			}
		}
	}
	c.did.Repositories++
	for ; name != "."; name = path.Dir(name) {
		if c.root.Remove(repoPath(name)) != nil {
			break // another repository lies below it
		}
	}
	return nil
}

// collectContent removes content that no repository has.
func (c *collection) collectContent(ctx context.Context) error {
	for _, algorithm := range []string{sha256Name, sha512Name} {
		shards, err := c.list(path.Join(blobsDir, algorithm))
		if err != nil {
			return err
		}
		for _, shard := range shards {
			if err := ctx.Err(); err != nil {
				return err
			}
			names, err := c.list(path.Join(blobsDir, algorithm, shard))
			if err != nil {
				return err
			}
			for _, name := range names {
				d, err := parseDigest(algorithm + ":" + name)
				if err != nil {
					continue
				}
				if _, ok := c.kept[d.key()]; ok {
					continue
				}
				size, removed, err := c.removeOld(d.blobPath())
				if err != nil {
					return err
				}
				if removed {
					c.did.Files++
					c.did.Bytes += size
				}
			}
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
