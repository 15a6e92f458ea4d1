package registry

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// The media types with a known structure. Manifests of other types are kept as well.
const (
	typeOCIImage    = "application/vnd.oci.image.manifest.v1+json"
	typeOCIIndex    = "application/vnd.oci.image.index.v1+json"
	typeDockerImage = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList  = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// manifestHead is the size of the header of a manifest's file: media type, spaces and a newline.
// The pushed bytes follow.
const manifestHead = 256

// maxTags is the maximum number of tags in one push (?tag=).
const maxTags = 100

// descriptor is the part of an image-spec descriptor that the registry uses.
type descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// manifest is the part of a manifest that the registry reads. Its lists tell images from
// indexes.
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *descriptor       `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Blobs         []descriptor      `json:"blobs"` // of OCI's former artifact manifest
	Manifests     []descriptor      `json:"manifests"`
	Subject       *descriptor       `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

// parseManifest parses a manifest and its Content-Type, "" for none. MediaType of the result is
// the type to store and serve the manifest under.
func parseManifest(contentType string, data []byte) (*manifest, error) {
	m := new(manifest)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("not a manifest: %w", err)
	}
	contentType = mediaType(contentType)
	if contentType != "" && m.MediaType != "" && contentType != mediaType(m.MediaType) {
		return nil, fmt.Errorf("the mediaType %.100q differs from the Content-Type %.100q", m.MediaType, contentType)
	}
	m.MediaType = cmp.Or(contentType, mediaType(m.MediaType))
	if err := m.checkKind(); err != nil {
		return nil, err
	}
	if err := m.checkDescriptors(); err != nil {
		return nil, err
	}
	if m.Subject != nil {
		if _, err := parseDigest(m.Subject.Digest); err != nil {
			return nil, fmt.Errorf("the subject %.200q %w", m.Subject.Digest, err)
		}
	}
	return m, nil
}

func (m *manifest) checkDescriptors() error {
	for _, d := range m.descriptors() {
		if !digestSyntax.MatchString(d.Digest) || d.Size < 0 {
			return fmt.Errorf("invalid descriptor %.100q with size %d", d.Digest, d.Size)
		}
	}
	return nil
}

// checkKind checks that the content fits the media type, which it sets if empty.
func (m *manifest) checkKind() error {
	isIndex, isImage := m.Manifests != nil, m.Config != nil || m.Layers != nil
	if isIndex && isImage {
		return errors.New("both manifests and layers: neither an image nor an index")
	}
	if m.MediaType == "" {
		m.MediaType = typeOCIImage
		if isIndex {
			m.MediaType = typeOCIIndex
		}
	}
	switch m.MediaType {
	case typeOCIImage, typeDockerImage:
		return m.checkVersion(!isIndex && m.Config != nil)
	case typeOCIIndex, typeDockerList:
		return m.checkVersion(!isImage)
	}
	return m.checkForeign()
}

// checkVersion checks the schema of OCI's and Docker's types. fits says that the content is of the
// type.
func (m *manifest) checkVersion(fits bool) error {
	if m.SchemaVersion != 2 {
		return fmt.Errorf("schemaVersion %d is not supported: use version 2", m.SchemaVersion)
	}
	if !fits {
		return fmt.Errorf("the content does not fit the media type %s", m.MediaType)
	}
	return nil
}

// checkForeign checks a type that is neither OCI's nor Docker's.
func (m *manifest) checkForeign() error {
	if !strings.HasSuffix(m.MediaType, "+json") || len(m.MediaType) >= manifestHead || strings.Trim(m.MediaType, mediaTypeChars) != "" {
		return fmt.Errorf("%.100q is not a media type of manifests", m.MediaType)
	}
	if m.SchemaVersion == 1 {
		return errors.New("schema version 1 is not supported: push with a client for version 2")
	}
	return nil
}

const mediaTypeChars = "abcdefghijklmnopqrstuvwxyz0123456789/.+-_!#$&^"

// blobs returns the blobs that the manifest refers to.
func (m *manifest) blobs() []descriptor {
	all := slices.Concat(m.Layers, m.Blobs)
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	return all
}

// descriptors returns all references except the subject.
func (m *manifest) descriptors() []descriptor { return append(m.blobs(), m.Manifests...) }

// elsewhere reports whether the content need not be pushed: nondistributable layers, and content
// with URLs of its own.
func (d descriptor) elsewhere() bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, ".nondistributable.") || strings.Contains(d.MediaType, ".foreign.")
}

// artifactType returns the type for the list of referrers of the subject.
func (m *manifest) artifactType() string {
	if m.ArtifactType == "" && m.Config != nil {
		return m.Config.MediaType
	}
	return m.ArtifactType
}

// putManifest stores a manifest and sets its tags.
func (r *Registry) putManifest(w http.ResponseWriter, req *http.Request, t target) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(uploadIdle)) // without deadlines the read may block
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxManifestBytes))
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	d, tags, err := manifestNames(t.ref, req.URL.Query()["tag"], data)
	if err != nil {
		return err
	}
	m, err := parseManifest(req.Header.Get("Content-Type"), data)
	if err != nil {
		return badRequest(codeManifestInvalid, "manifest %s: %v", d, err)
	}
	if err := r.room(); err != nil {
		return err
	}
	if err := r.keepManifest(t.name, d, m, data, tags); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Location", "/v2/"+t.name+"/manifests/"+d.String())
	h.Set("Docker-Content-Digest", d.String())
	if m.Subject != nil {
		h.Set("OCI-Subject", m.Subject.Digest)
	}
	if len(tags) > 0 && tags[0] != t.ref {
		h.Set("OCI-Tag", strings.Join(tags, ", "))
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// manifestNames returns the digest of a manifest and its tags: the parameters ?tag= and, if ref
// is a tag, ref itself.
func manifestNames(ref string, params []string, data []byte) (digest, []string, error) {
	tags := params
	d := digest{algorithm: sha256Name}
	if strings.Contains(ref, ":") {
		var err error
		if d, err = parseDigest(ref); err != nil {
			return digest{}, nil, errDigestInvalid(ref, err)
		}
	} else {
		tags = append([]string{ref}, params...)
	}
	if len(tags) > maxTags {
		return digest{}, nil, &apiError{http.StatusRequestURITooLong, codeUnsupported, fmt.Sprintf("more than %d tags at once", maxTags)}
	}
	for _, tag := range tags {
		if !tagSyntax.MatchString(tag) {
			return digest{}, nil, badRequest(codeManifestInvalid, "bad tag %.200q: use at most 128 letters, digits, . _ and -, not beginning with . or -", tag)
		}
	}
	h := newHash(d.algorithm)
	_, _ = h.Write(data) // never fails
	found := hex.EncodeToString(h.Sum(nil))
	if d.hex != "" && d.hex != found {
		return digest{}, nil, badRequest(codeDigestInvalid, "the digest of the manifest is %s:%s and not %s", d.algorithm, found, d)
	}
	d.hex = found
	return d, tags, nil
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

// getManifest serves a manifest with the media type of its push.
func (r *Registry) getManifest(w http.ResponseWriter, req *http.Request, t target) error {
	r.mu.RLock()
	d, err := r.resolve(t.name, t.ref)
	if err == nil {
		_, err = r.rely(manifestPath(t.name, d))
	}
	var media string
	var data []byte
	if err == nil {
		media, data, err = r.readManifest(t.name, d)
	}
	r.mu.RUnlock()
	if errors.Is(err, fs.ErrNotExist) {
		return errManifestUnknown(t.name, t.ref)
	}
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Docker-Content-Digest", d.String())
	h.Set("Content-Type", media)
	h.Set("Etag", `"`+d.String()+`"`)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
	return nil
}

// deleteManifest removes a tag, or a manifest with all its tags.
func (r *Registry) deleteManifest(w http.ResponseWriter, _ *http.Request, t target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if strings.Contains(t.ref, ":") {
		var d digest
		if d, err = parseDigest(t.ref); err != nil {
			return errDigestInvalid(t.ref, err)
		}
		err = r.removeManifest(t.name, d)
	} else if !tagSyntax.MatchString(t.ref) {
		err = fs.ErrNotExist
	} else if err = r.root.Remove(tagPath(t.name, t.ref)); err == nil {
		err = r.syncDir(repoPath(t.name, "_tags"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errManifestUnknown(t.name, t.ref)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
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

// maxReferrers is the approximate size of a response with referrers. Clients accept at least the
// size of the largest manifest.
const maxReferrers = MaxManifestBytes - 64<<10

// getReferrers lists the manifests whose subject is the digest, even if the subject does not
// exist.
func (r *Registry) getReferrers(w http.ResponseWriter, req *http.Request, t target) error {
	subject, err := parseDigest(t.ref)
	if err != nil {
		return errDigestInvalid(t.ref, err)
	}
	dir := repoPath(t.name, "_referrers", subject.path())
	names, err := r.list(dir)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	names = after(names, query.Get("last"))
	filter := query.Get("artifactType")
	index := struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Manifests     []json.RawMessage `json:"manifests"`
	}{2, typeOCIIndex, []json.RawMessage{}}
	size := 0
	for i, name := range names {
		entry, err := r.readReferrer(t.name, path.Join(dir, name), name)
		if err != nil {
			return err
		}
		if entry == nil {
			continue
		}
		if filter != "" && artifactTypeOf(entry) != filter {
			continue
		}
		if size += len(entry); size > r.maxReferrers && len(index.Manifests) > 0 {
			next := maps.Clone(query)
			next.Set("last", names[i-1])
			setNext(w, req.URL.Path, next)
			break
		}
		index.Manifests = append(index.Manifests, entry)
	}
	if filter != "" {
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	return writeJSON(w, typeOCIIndex, index)
}

// after returns the sorted names behind last, or all if last is empty.
func after(names []string, last string) []string {
	if last == "" {
		return names
	}
	i, found := slices.BinarySearch(names, last)
	if found {
		i++
	}
	return names[i:]
}

// artifactTypeOf returns the artifact type of a referrer's entry, or "" for a damaged entry.
func artifactTypeOf(entry []byte) string {
	var d struct {
		ArtifactType string `json:"artifactType"`
	}
	if json.Unmarshal(entry, &d) != nil {
		return ""
	}
	return d.ArtifactType
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
