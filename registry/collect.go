package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// CollectOptions adjusts [Registry.Collect].
type CollectOptions struct {
	// Untagged also removes manifests without a tag, unless an index or a subject that stays
	// refers to the manifest.
	Untagged bool

	// DryRun only counts and removes nothing.
	DryRun bool
}

// Collected counts the results of a collection.
type Collected struct {
	Repositories int   // repositories left empty
	Manifests    int   // manifests without a tag
	Blobs        int   // blobs, per repository, that no manifest of the repository refers to
	Uploads      int   // unfinished uploads
	Files        int   // of content
	Bytes        int64 // of content, manifests and uploads
}

// Collect frees all content that is unreferenced and that no client has asked about for the
// grace period:
//
//	start := now; cutoff := start - grace
//	for each repository:  mark the digests that its manifests refer to
//	                      unmarked blobs older than cutoff: unlink from the repository
//	for all content:      in no repository and older than cutoff: unlink
//
// Collect is safe beside all other requests. A request relies on a file if it tells a client
// that the file exists, refers to the file or mounts it. Such a request sets the file's time, if
// older than half the grace period, and holds mu for reading until its own reference exists.
// Collect takes the start time with mu held for writing: marking sees every reference made
// before, and files relied on later are younger than the cutoff. Right before a removal Collect
// checks the time again, with mu held for writing.
//
// Two collections at once do no harm, but do the work twice. If ctx ends, Collect stops and
// returns the counts so far.
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

// collection is a run of Collect.
type collection struct {
	*Registry
	CollectOptions
	cutoff time.Time
	kept   map[string]struct{} // digests of content in repositories, as digest.short
	did    Collected
}

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

// collectUploads ends the uploads that received no data for the grace period.
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
		default: // a request is using the upload
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
		err = c.uploads.end(u)
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

// manifests reads all manifests of a repository.
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

// eachDigest calls call for each file ALGORITHM/HEX below dir.
func (c *collection) eachDigest(dir string, call func(digest) error) error {
	for _, algorithm := range []string{sha256Name, sha512Name} {
		names, err := c.list(path.Join(dir, algorithm))
		if err != nil {
			return err
		}
		for _, name := range names {
			d, err := parseDigest(algorithm + ":" + name)
			if err != nil {
				continue // not a file of the registry
			}
			if err := call(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// collectRepository removes the blobs that no manifest of the repository refers to. If a
// manifest is unreadable all blobs stay: the manifest may refer to any of them.
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
			c.kept[d.short()] = struct{}{}
			return nil
		})
	}
	marked := markedBy(all, gone)
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
		c.kept[d.short()] = struct{}{}
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

// removeOld removes a file older than the cutoff. It returns the size and whether the file was
// removed.
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
	// A request that relies on the file has set its time meanwhile.
	if info, err = c.root.Stat(file); err != nil || !info.ModTime().Before(c.cutoff) {
		return 0, false, ignoreMissing(err)
	}
	if err := c.root.Remove(file); err != nil {
		return 0, false, err
	}
	return info.Size(), true, nil
}

// collectManifests removes the manifests that are unreachable, and returns them.
func (c *collection) collectManifests(ctx context.Context, name string, all []found) (map[digest]bool, error) {
	gone, err := c.unreachable(name, all)
	if err != nil || len(gone) == 0 {
		return gone, err
	}
	if !c.DryRun {
		// Read again while no request is at work: an index touched meanwhile keeps its
		// manifests.
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

// addLeads adds the way from an index to its manifests, and from a subject to its referrer.
func (m *found) addLeads(leads map[digest][]digest) {
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
}

// markedBy returns the digests that the manifests outside of gone refer to.
func markedBy(all []found, gone map[digest]bool) map[string]bool {
	marked := make(map[string]bool)
	for _, m := range all {
		if !gone[m.digest] {
			for _, desc := range m.descriptors() {
				marked[desc.Digest] = true
			}
		}
	}
	return marked
}

// unreachable returns the manifests that no tag leads to: through indexes, or from a subject to
// its referrers. Manifests younger than the cutoff count as reached.
func (c *collection) unreachable(name string, all []found) (map[digest]bool, error) {
	tags, err := c.tagsOf(name)
	if err != nil {
		return nil, err
	}
	leads := make(map[digest][]digest)
	var reached []digest
	for _, m := range all {
		m.addLeads(leads)
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

// tidyReferrers removes entries without a manifest, and empty directories.
func (c *collection) tidyReferrers(name string) error {
	top := repoPath(name, "_referrers")
	return c.eachDigest(top, func(subject digest) error {
		dir := path.Join(top, subject.path())
		entries, err := c.list(dir)
		if err != nil {
			return err
		}
		c.mu.Lock() // a push writes the entry before the manifest
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
			_ = c.root.Remove(dir) // fails if a new entry exists
		}
		return nil
	})
}

// removeRepository removes the directories of an empty repository, and parent directories
// without another repository.
func (c *collection) removeRepository(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, area := range areas {
		for _, algorithm := range []string{sha256Name, sha512Name, ""} {
			err := c.root.Remove(repoPath(name, area, algorithm))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil // not empty: a push came meanwhile
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
				if err := c.collectBlob(d); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// collectBlob removes a blob's file unless a repository has the blob.
func (c *collection) collectBlob(d digest) error {
	if _, ok := c.kept[d.short()]; ok {
		return nil
	}
	size, removed, err := c.removeOld(d.blobPath())
	if err != nil {
		return err
	}
	if removed {
		c.did.Files++
		c.did.Bytes += size
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
