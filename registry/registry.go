// Package registry is an OCI registry on disk: a [Registry] is an http.Handler
// that speaks the OCI distribution-spec 1.1 to docker, FRE and every other client
// of registries, and [Registry.Collect] frees what nothing refers to any more.
// [Listen] decides who may reach it, [Users] who may do what.
//
// A directory holds all of it, in files that are whole or absent:
//
//	DIR/version                            what wrote this, and the lock of who uses it
//	DIR/blobs/ALGORITHM/ab/HEX             content, once for all repositories
//	DIR/uploads/UUID.REPOSITORY            what has come of an upload, which outlives the process
//	DIR/tmp/                               files that are being written
//	DIR/repos/NAME/_blobs/ALGORITHM/HEX    empty: this repository has that blob
//	DIR/repos/NAME/_manifests/ALGORITHM/HEX             media type in 256 bytes, the manifest's bytes
//	DIR/repos/NAME/_tags/TAG                            the manifest's digest
//	DIR/repos/NAME/_referrers/ALGORITHM/HEX/ALGORITHM-HEX  descriptor of a manifest whose subject is the first digest
//
// A component of a repository's name never begins with an underscore, so that
// repositories may lie below one another. A blob is verified while it comes, made
// durable and only then given its name; it may be had from the repositories it was
// pushed or mounted to. What a client was told is there stays there for the grace
// period, during which whatever refers to it may come: see collect.go.
//
// Manifests that were acknowledged survive a crash with all they refer to. Blobs
// that no manifest refers to yet may be forgotten by one; they are never wrong.
package registry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// DefaultGrace is how long blobs that nothing refers to, and unfinished uploads,
// are kept.
const DefaultGrace = 24 * time.Hour

// MaxManifestBytes is the size of the largest manifest that is accepted, that which
// the distribution-spec asks for.
const MaxManifestBytes = 4 << 20

// ErrInUse is wrapped by [Open] for a directory that another process has open.
var ErrInUse = errors.New("the directory is in use by another registry")

// Config says what a registry is made of. Dir and Log are needed.
type Config struct {
	// Dir holds everything; it is made if it is missing. A directory that holds
	// anything else is refused.
	Dir string
	Log *slog.Logger

	// ReadOnly refuses every change, and makes none: the directory may be mounted
	// read-only and shared by several registries.
	ReadOnly bool

	// Users are asked for a name and a password if they are not nil.
	Users *Users

	// Grace is how long what nothing refers to is kept; 0 is DefaultGrace, less is
	// not at all.
	Grace time.Duration

	// Room is called before the registry writes a part of a blob, or a manifest. Its error,
	// such as ENOSPC, refuses the write. Nil: the registry writes until the disk is full.
	Room func() error

	// Metrics has the registry's counters added; nil for none.
	Metrics prometheus.Registerer
}

// room returns an error if the registry may write no more.
func (r *Registry) room() error {
	if r.cfg.Room == nil {
		return nil
	}
	return r.cfg.Room()
}

// Registry serves a directory. Its methods may be called from several goroutines.
type Registry struct {
	cfg     Config
	root    *os.Root
	lock    *os.File
	uploads uploads
	metrics metrics
	origin  http.CrossOriginProtection // web pages may not push

	maxReferrers int // bytes of an answer; fewer in tests

	// mu is held for reading by whoever makes or relies on a file below repos and
	// blobs, from the check of what it needs to its own appearance, and for writing
	// by whoever removes one.
	mu sync.RWMutex
}

const (
	versionFile = "version"
	version     = "fre registry 1\n"
	tmpDir      = "tmp"
	uploadsDir  = "uploads"
	blobsDir    = "blobs"
	reposDir    = "repos"
)

// Open returns the registry of cfg.Dir; the caller closes it. Only one process has
// a directory open at a time ([ErrInUse]), but for those that only read.
func Open(cfg Config) (_ *Registry, err error) {
	cfg.Grace = max(cmp.Or(cfg.Grace, DefaultGrace), 0)
	if !cfg.ReadOnly {
		if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("make registry directory: %w", err)
		}
	}
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open registry directory: %w", err)
	}
	r := &Registry{cfg: cfg, root: root, maxReferrers: maxReferrers}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	if err := r.acquire(); err != nil {
		return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
	}
	if !cfg.ReadOnly {
		// What a crash left half written was promised to nobody.
		if err := root.RemoveAll(tmpDir); err != nil {
			return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
		}
		for _, dir := range []string{tmpDir, uploadsDir, blobsDir, reposDir} {
			if err := root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
			}
		}
		if err := r.loadUploads(); err != nil {
			return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
		}
	}
	if err := r.metrics.register(cfg.Metrics); err != nil {
		return nil, err
	}
	return r, nil
}

// acquire locks the directory by its version file, which it makes in an empty one.
func (r *Registry) acquire() error {
	flag, how := os.O_RDWR|os.O_CREATE, unix.LOCK_EX
	if r.cfg.ReadOnly {
		flag, how = os.O_RDONLY, unix.LOCK_SH
	} else if _, err := r.root.Stat(versionFile); errors.Is(err, fs.ErrNotExist) {
		entries, err := fs.ReadDir(r.root.FS(), ".")
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("it holds %s, and no registry: give an empty or a new directory", entries[0].Name())
		}
	}
	f, err := r.root.OpenFile(versionFile, flag, 0o644)
	if err != nil {
		return err
	}
	r.lock = f
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrInUse
		}
		return fmt.Errorf("lock: %w", err)
	}
	var found [64]byte
	n, _ := f.ReadAt(found[:], 0)
	switch {
	case string(found[:n]) == version:
		return nil
	case n == 0 && !r.cfg.ReadOnly:
		if _, err := f.WriteAt([]byte(version), 0); err != nil {
			return err
		}
		return f.Sync()
	}
	return fmt.Errorf("its version is %q and not %q: a newer FRE wrote it, or something else", found[:n], version)
}

// Close gives the directory back. The server of the registry has to be shut down
// before.
func (r *Registry) Close() error {
	var all []error
	if r.lock != nil {
		all = append(all, r.lock.Close())
	}
	r.metrics.unregister(r.cfg.Metrics)
	return errors.Join(append(all, r.root.Close())...)
}
