package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	indexName    = "index.json"
	indexLogName = "index.log"
)

// indexContent holds the content of the database that the images' manifests lack: with both a lost
// database is rebuilt. Without the tenants' ids, a tenant could get the id, and so the files, of
// another tenant. Parts are left out: builds find them again.
type indexContent struct {
	Tenants   []Tenant    `json:"tenants"`
	Functions []*Function `json:"functions"`
	Images    []indexed   `json:"images"` // newest first
}

type indexed struct {
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Names   []string  `json:"names,omitempty"`   // "name:version"
	Remotes []string  `json:"remotes,omitempty"` // "name@sha256:…"
	Foreign bool      `json:"foreign,omitempty"`
	Tagged  bool      `json:"tagged,omitempty"` // old format: the manifest's name instead of Names
}

// indexLine is one line of index.log: the new state of one tenant, function or image.
type indexLine struct {
	Tenant     *Tenant   `json:"tenant,omitempty"`
	Function   *Function `json:"function,omitempty"`
	NoFunction string    `json:"no_function,omitempty"`
	Image      *indexed  `json:"image,omitempty"`
	NoImage    Digest    `json:"no_image,omitempty"`
}

// indexFile is the index on disk: index.json is a full copy of some moment, index.log holds the
// later changes, a line each. With 10,000 images, a change writes one line instead of two
// megabytes. metadata.mu guards indexFile.
type indexFile struct {
	disk   *disk
	log    *os.File
	base   int64 // bytes of index.json
	end    int64 // of the valid part of index.log
	before int64 // end before the last add, for settle
	stale  bool  // index.log may be ahead of the database: write index.json in full
}

// minIndexLog is the size that index.log may always reach, even beside a smaller index.json.
const minIndexLog = 256 << 10

// openIndex opens index.log for appending. Only rebuild reads its lines.
func (k *disk) openIndex() (x indexFile, err error) {
	f, err := openat(int(k.root.Fd()), indexLogName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return x, err
	}
	st, err := f.Stat()
	if err != nil {
		return x, errors.Join(err, f.Close())
	}
	var base unix.Stat_t
	// The last line may belong to a transaction that was not committed.
	x = indexFile{disk: k, log: f, end: st.Size(), stale: st.Size() > 0}
	if err := unix.Fstatat(int(k.root.Fd()), indexName, &base, 0); err == nil {
		x.base = base.Size
	}
	return x, nil
}

// add makes lines durable; next is the state with them. The caller calls settle after the end of
// the transaction.
func (x *indexFile) add(lines []indexLine, next *snapshot) error {
	x.before = x.end
	if len(lines) == 0 && !x.stale {
		return nil
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	for _, line := range lines {
		if err := e.Encode(line); err != nil {
			return err
		}
	}
	line := buf.Bytes()
	if x.stale || x.end+int64(len(line)) > max(minIndexLog, x.base) {
		x.stale = true
		if err := x.write(next); !errors.Is(err, unix.ENOSPC) {
			return err
		}
		// A single line may still fit. Begin with a newline, because the log may end in half a
		// line.
		line = append([]byte{'\n'}, line...)
	}
	_, err := x.log.WriteAt(line, x.end)
	if err == nil {
		err = unix.Fdatasync(int(x.log.Fd()))
	}
	if err != nil {
		x.cut()
		return err
	}
	x.end += int64(len(line))
	return nil
}

// settle takes back the lines of the last add if the transaction was not committed.
func (x *indexFile) settle(committed bool) {
	switch {
	case committed:
		x.stale = x.stale && x.end > 0
	case x.end != x.before:
		x.end = x.before
		x.cut()
	}
}

// cut truncates the log to its end.
func (x *indexFile) cut() {
	if x.log.Truncate(x.end) != nil {
		x.stale = true
	}
}

// write writes index.json in full and empties the log. After a crash in between, the lines of
// the log repeat changes that index.json already has.
func (x *indexFile) write(n *snapshot) error {
	all := indexContent{
		Tenants:   slices.SortedFunc(maps.Values(n.tenants), func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) }),
		Functions: n.functionList,
	}
	for _, img := range n.images {
		all.Images = append(all.Images, indexed{Digest: img.Digest, Created: img.Created, Names: img.Names, Remotes: img.Remotes, Foreign: img.Foreign})
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	tmp, root := int(x.disk.tmp.Fd()), x.disk.root
	f, err := openat(tmp, indexName, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		_ = unix.Unlinkat(tmp, indexName, 0)
		return err
	}
	if err := unix.Renameat(tmp, indexName, int(root.Fd()), indexName); err != nil {
		return err
	}
	if err := root.Sync(); err != nil {
		return err
	}
	x.base, x.end, x.before = int64(len(b)), 0, 0
	return x.log.Truncate(0)
}

// readIndex reads the index: index.json with the lines of index.log applied. It skips a line
// that a crash has cut off or that is unreadable.
func (k *disk) readIndex() indexContent {
	var x indexContent
	b, err := os.ReadFile(filepath.Join(k.dir, indexName))
	if err == nil {
		err = json.Unmarshal(b, &x)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Error("cannot read index: functions and tenants are lost", "error", err)
		x = indexContent{}
	}
	log, err := os.ReadFile(filepath.Join(k.dir, indexLogName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Error("cannot read the last lines of the index", "error", err)
	}
	for line := range bytes.Lines(log) {
		if len(line) == 1 {
			continue
		}
		var l indexLine
		if err := json.Unmarshal(line, &l); err != nil || line[len(line)-1] != '\n' {
			k.log.Warn("a line of the index cannot be read: left out", "line", string(line), "error", err)
			continue
		}
		x.apply(l)
	}
	return x
}

func (x *indexContent) apply(l indexLine) {
	if l.Tenant != nil {
		x.Tenants = slices.DeleteFunc(x.Tenants, func(t Tenant) bool { return t.ID == l.Tenant.ID || t.Name == l.Tenant.Name })
		x.Tenants = append(x.Tenants, *l.Tenant)
	}
	name := l.NoFunction
	if l.Function != nil {
		name = l.Function.Name
	}
	x.Functions = slices.DeleteFunc(x.Functions, func(f *Function) bool { return f == nil || f.Name == name })
	if l.Function != nil {
		x.Functions = append(x.Functions, l.Function)
	}
	if l.Image != nil {
		i := slices.IndexFunc(x.Images, func(i indexed) bool { return i.Digest == l.Image.Digest })
		if i >= 0 && x.Images[i].Created.Equal(l.Image.Created) {
			x.Images[i] = *l.Image
			return
		}
		// An image that was made again is the newest.
		if i >= 0 {
			x.Images = slices.Delete(x.Images, i, i+1)
		}
		x.Images = slices.Insert(x.Images, 0, *l.Image)
	}
	if l.NoImage != "" {
		x.Images = slices.DeleteFunc(x.Images, func(i indexed) bool { return i.Digest == l.NoImage })
	}
}
