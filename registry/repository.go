package registry

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// areas are the directories of a repository.
var areas = [...]string{"_blobs", "_manifests", "_tags", "_referrers"}

// exists reports whether a repository of that name exists: a client has pushed to it, and some
// content is left.
func (k *disk) exists(name string) (bool, error) {
	for _, area := range areas[:3] {
		if _, err := k.root.Stat(repoPath(name, area)); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// repositories returns the names of all repositories, sorted.
func (k *disk) repositories(ctx context.Context) ([]string, error) {
	var names []string
	var walk func(name string) error
	walk = func(name string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := k.list(path.Join(reposDir, name))
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

// statBlob returns the size of a blob of a repository, and keeps the blob for the grace period.
// Errors: fs.ErrNotExist. The caller holds mu for reading.
func (k *disk) statBlob(name string, d digest) (int64, error) {
	if _, err := k.rely(markerPath(name, d)); err != nil {
		return 0, err
	}
	info, err := k.rely(d.blobPath())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// link gives a repository an existing blob. The caller holds mu for reading.
func (k *disk) link(name string, d digest) error {
	if _, err := k.rely(d.blobPath()); err != nil {
		return err
	}
	marker := markerPath(name, d)
	if _, err := k.rely(marker); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := k.mkdirAll(path.Dir(marker)); err != nil {
		return err
	}
	f, err := k.root.OpenFile(marker, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// readManifest returns a manifest's media type and bytes, verified by the digest. Errors:
// fs.ErrNotExist.
func (k *disk) readManifest(name string, d digest) (mediaType string, data []byte, err error) {
	file, err := k.root.ReadFile(manifestPath(name, d))
	if err != nil {
		return "", nil, err
	}
	head, data := file[:min(len(file), manifestHead)], file[min(len(file), manifestHead):]
	h := newHash(d.algorithm)
	_, _ = h.Write(data) // never fails
	if hex.EncodeToString(h.Sum(nil)) != d.hex {
		return "", nil, fmt.Errorf("manifest %s of %s is damaged: push the manifest again", d, name)
	}
	return strings.TrimSpace(string(head)), data, nil
}

// resolve returns the digest of a reference, which is a tag or a digest. Errors: fs.ErrNotExist
// for a missing tag.
func (k *disk) resolve(name, ref string) (digest, error) {
	if strings.Contains(ref, ":") {
		d, err := parseDigest(ref)
		if err != nil {
			return digest{}, errDigestInvalid(ref, err)
		}
		return d, nil
	}
	if !tagSyntax.MatchString(ref) {
		return digest{}, fs.ErrNotExist
	}
	text, err := k.root.ReadFile(tagPath(name, ref))
	if err != nil {
		return digest{}, err
	}
	d, err := parseDigest(string(text))
	if err != nil {
		return digest{}, fmt.Errorf("tag %s of %s is damaged: %.100q %w", ref, name, text, err)
	}
	return d, nil
}

// tagsOf returns a repository's tags by digest, without damaged tags.
func (k *disk) tagsOf(name string) (map[digest][]string, error) {
	tags, err := k.list(repoPath(name, "_tags"))
	if err != nil {
		return nil, err
	}
	by := make(map[digest][]string)
	for _, tag := range tags {
		text, err := k.root.ReadFile(tagPath(name, tag))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if d, err := parseDigest(string(text)); err == nil {
			by[d] = append(by[d], tag)
		}
	}
	return by, nil
}

// removeTags removes the tags of a manifest.
func (k *disk) removeTags(name string, d digest) error {
	tags, err := k.tagsOf(name)
	if err != nil {
		return err
	}
	for _, tag := range tags[d] {
		if err := k.root.Remove(tagPath(name, tag)); err != nil {
			return err
		}
	}
	if len(tags[d]) == 0 {
		return nil
	}
	return k.syncDir(repoPath(name, "_tags"))
}

// removeManifest removes a manifest, its tags first: a crash leaves no tag without a manifest.
// The caller holds mu.
func (k *disk) removeManifest(name string, d digest) error {
	file := manifestPath(name, d)
	if _, err := k.root.Stat(file); err != nil {
		return err
	}
	_, data, err := k.readManifest(name, d)
	var m manifest
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		// Remove a damaged manifest, too; the next collection removes the entry for its subject.
		m.Subject = nil
	}
	if err := k.removeTags(name, d); err != nil {
		return err
	}
	if err := k.root.Remove(file); err != nil {
		return err
	}
	if m.Subject != nil {
		if subject, err := parseDigest(m.Subject.Digest); err == nil {
			if err := k.remove(referrerPath(name, subject, d)); err != nil {
				return err
			}
		}
	}
	return k.syncDir(path.Dir(file))
}

// keepManifest makes a manifest and its tags durable, after all content that the manifest refers
// to.
func (k *disk) keepManifest(name string, d digest, m *manifest, data []byte, tags []string) error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if err := k.syncContent(name, m); err != nil {
		return err
	}
	if m.Subject != nil {
		if err := k.keepReferrer(name, d, m, len(data)); err != nil {
			return err
		}
	}
	if err := k.writeFile(manifestPath(name, d), fmt.Appendf(nil, "%-*s\n%s", manifestHead-1, m.MediaType, data)); err != nil {
		return err
	}
	for _, tag := range tags {
		if err := k.writeFile(tagPath(name, tag), []byte(d.String())); err != nil {
			return err
		}
	}
	return nil
}

// syncContent checks that the content of a manifest is there, and makes it durable.
func (k *disk) syncContent(name string, m *manifest) error {
	dirs := map[string]bool{}
	for _, desc := range m.blobs() {
		if err := k.checkBlob(name, desc, dirs); err != nil {
			return err
		}
	}
	for _, desc := range m.Manifests {
		if err := k.checkManifest(name, desc, dirs); err != nil {
			return err
		}
	}
	for dir := range dirs {
		if err := k.syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// keepReferrer writes the manifest's entry among the referrers of its subject. The entry comes before
// the manifest; without the manifest it is not listed.
func (k *disk) keepReferrer(name string, d digest, m *manifest, size int) error {
	subject, err := parseDigest(m.Subject.Digest)
	if err != nil {
		return err
	}
	if _, err := k.rely(manifestPath(name, subject)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entry, err := json.Marshal(descriptor{MediaType: m.MediaType, Digest: d.String(), Size: int64(size), ArtifactType: m.artifactType(), Annotations: m.Annotations})
	if err != nil {
		return err
	}
	return k.writeFile(referrerPath(name, subject, d), entry)
}

// checkBlob checks that the repository has the descriptor's blob, keeps the blob for the grace
// period, and adds the directories that hold it to dirs.
func (k *disk) checkBlob(name string, desc descriptor, dirs map[string]bool) error {
	d, err := parseDigest(desc.Digest)
	if err != nil { // the registry has no content under this algorithm
		return missing(name, desc)
	}
	size, err := k.statBlob(name, d)
	if errors.Is(err, fs.ErrNotExist) {
		return missing(name, desc)
	}
	if err != nil {
		return err
	}
	dirs[path.Dir(markerPath(name, d))], dirs[path.Dir(d.blobPath())] = true, true
	return checkSize(desc, size)
}

// checkManifest is checkBlob for an entry of an index. The entry may also be a blob, as in build
// caches.
func (k *disk) checkManifest(name string, desc descriptor, dirs map[string]bool) error {
	d, err := parseDigest(desc.Digest)
	if err != nil {
		return missing(name, desc)
	}
	info, err := k.rely(manifestPath(name, d))
	if errors.Is(err, fs.ErrNotExist) {
		return k.checkBlob(name, desc, dirs)
	}
	if err != nil {
		return err
	}
	dirs[path.Dir(manifestPath(name, d))] = true
	return checkSize(desc, info.Size()-manifestHead)
}

// missing returns the error for content that the repository lacks, or nil if the content may be
// elsewhere.
func missing(name string, desc descriptor) error {
	if desc.elsewhere() {
		return nil
	}
	return badRequest(codeManifestBlobUnknown, "repository %s lacks %.200s, named in the manifest: push the blob or manifest first", name, desc.Digest)
}

func checkSize(desc descriptor, size int64) error {
	if desc.Size != size {
		return badRequest(codeManifestInvalid, "the manifest says that %s has %d bytes, but the stored size is %d", desc.Digest, desc.Size, size)
	}
	return nil
}

// readReferrer returns an entry of a list of referrers, or nil if the entry is missing or
// damaged, or its manifest is missing.
func (k *disk) readReferrer(name, file, entry string) ([]byte, error) {
	algorithm, hex, _ := strings.Cut(entry, "-")
	if _, err := k.root.Stat(manifestPath(name, digest{algorithm, hex})); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	data, err := k.root.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !json.Valid(data) {
		return nil, nil
	}
	return data, err
}
