// Package registry is an OCI registry on disk. A [Registry] is an http.Handler that speaks the
// OCI distribution-spec 1.1 to docker, FRE and every other client of registries.
// [Registry.Collect] frees unreferenced content. [Listen] limits access by address, [Users] by
// name and password.
//
// All state is in one directory, in files that are whole or absent:
//
//	DIR/version                            the format's version; carries the lock of the process
//	DIR/blobs/ALGORITHM/ab/HEX             content, once for all repositories
//	DIR/uploads/UUID.REPOSITORY            received part of an upload; survives the process
//	DIR/tmp/                               files being written
//	DIR/repos/NAME/_blobs/ALGORITHM/HEX    empty: this repository has that blob
//	DIR/repos/NAME/_manifests/ALGORITHM/HEX             media type in 256 bytes, the manifest's bytes
//	DIR/repos/NAME/_tags/TAG                            the manifest's digest
//	DIR/repos/NAME/_referrers/ALGORITHM/HEX/ALGORITHM-HEX  descriptor of a manifest whose subject is the first digest
//
// A component of a repository's name never begins with an underscore, so repositories may lie
// below one another. The registry verifies a blob during the upload, makes the blob durable and
// only then sets the final name. A repository serves only blobs that were pushed or mounted to
// the repository. If the registry has told a client that a file exists, the file stays for the
// grace period: time enough to push the manifests that refer to the file. See collect.go.
//
// Acknowledged manifests survive a crash together with all content that they refer to. A crash
// may lose blobs that no manifest refers to yet; a crash never corrupts a blob.
package registry

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DefaultGrace is the time for which unreferenced blobs and unfinished uploads are kept.
const DefaultGrace = 24 * time.Hour

// maxReferrers is the approximate size of a response with referrers. Clients accept at least the
// size of the largest manifest.
const maxReferrers = MaxManifestBytes - 64<<10

// Config configures a registry. Required: Dir, Log.
type Config struct {
	// Dir holds all state; Open creates it if missing. Open refuses a directory with foreign
	// files.
	Dir string
	Log *slog.Logger

	// ReadOnly refuses every change. The registry does not write at all: the directory may be
	// mounted read-only and shared by several registries.
	ReadOnly bool

	// Users, if not nil, must log in with name and password.
	Users *Users

	// Grace is the time for which unreferenced files are kept; 0 means DefaultGrace, a negative
	// value no time.
	Grace time.Duration

	// Room is called before the registry writes a part of a blob, or a manifest. Its error,
	// such as ENOSPC, refuses the write. Nil: the registry writes until the disk is full.
	Room func() error

	// Metrics, if not nil, gets the registry's counters.
	Metrics prometheus.Registerer
}

// room returns an error if the registry must not write.
func (r *Registry) room() error {
	if r.cfg.Room == nil {
		return nil
	}
	return r.cfg.Room()
}

// Registry serves a directory. Several goroutines may call its methods.
type Registry struct {
	*disk
	cfg     Config
	uploads uploads
	metrics metrics
	origin  http.CrossOriginProtection // keeps web pages from pushing

	maxReferrers int // bytes of an answer; less in tests
}

// Open returns the registry of cfg.Dir; the caller closes it. Only one process may have a
// directory open ([ErrInUse]), except that several read-only processes may share it.
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
	r := &Registry{
		disk: &disk{root: root, readOnly: cfg.ReadOnly, grace: cfg.Grace},
		cfg:  cfg, maxReferrers: maxReferrers,
	}
	r.uploads.disk = r.disk
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	if err := r.acquire(); err != nil {
		return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
	}
	if !cfg.ReadOnly {
		err := r.prepare()
		if err == nil {
			err = r.uploads.load()
		}
		if err != nil {
			return nil, fmt.Errorf("open registry %s: %w", cfg.Dir, err)
		}
	}
	if err := r.metrics.register(cfg.Metrics); err != nil {
		return nil, err
	}
	return r, nil
}

// Close releases the directory. Shut down the registry's server first.
func (r *Registry) Close() error {
	r.metrics.unregister(r.cfg.Metrics)
	return r.disk.Close()
}
