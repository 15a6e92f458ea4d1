// Package access decides who may do what. It keeps tenants with their quotas, tokens and secrets,
// and writes the audit log. The package speaks no protocol and imports nothing of FRE; server,
// gateway and engine ask it.
//
//	DIR/access.json        tenants, tokens (as hashes), mode 0600
//	DIR/secrets.key        keys that seal secrets, mode 0600 (or Config.KeyFile)
//	DIR/secrets/TENANT/NAME  a sealed secret
//	DIR/audit.ndjson       audit log, newest lines; .1, .2, … are older
//
// In a cluster all nodes share tenants, tokens and secrets (share.go). The files are then the copy
// from which a node starts.
//
// The records are separate from the store's database on purpose. A lost or damaged database is
// rebuilt from the images, but access rights must never be guessed. The records are few and change
// by hand, so each change writes the whole file: aside, synced, renamed, its directory synced. A
// crash leaves the state before or after the change.
//
// The main types: [Access] holds all records; an [Identity] is an authenticated client; [Quotas]
// bound a tenant; an [Entry] is a line of the audit log.
package access

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Access is safe for concurrent use. Lock order: changing before mu.
type Access struct {
	records // state is replaced as a whole, under mu
	*audit

	cfg     Config
	secrets secretFiles
	begun   time.Time // origin of the limiters' clocks

	failures Addresses // of failed authentication
	oidc     issuers

	table   Table     // nil: the engine is not in a cluster
	node    string    // name of this node in the cluster
	warnOwn sync.Once // logs once that other nodes' secrets cannot be opened

	changing sync.Mutex // held during a change; taken before mu

	mu      sync.Mutex
	keys    keyrings           // guarded by mu; a change also holds changing
	making  map[string]*record // the tokens of the change being written to the table
	used    bool               // some token has a LastUsed that is not on disk
	caught  bool               // the table has been read completely
	unsaved bool               // rows of the table are not yet on disk
}

func (a *Access) recordsPath() string { return filepath.Join(a.cfg.Dir, "access.json") }

func (a *Access) writeLocked(s *state) error {
	shown := s.clone()
	for id, t := range shown.Tokens {
		c := *t
		c.LastUsed = t.lastUsed()
		shown.Tokens[id] = &c
	}
	raw, err := json.MarshalIndent(shown, "", "\t")
	if err != nil {
		return fmt.Errorf("encode access records: %w", err)
	}
	if err := writeWhole(a.recordsPath(), append(raw, '\n')); err != nil {
		return fmt.Errorf("write access records: %w", err)
	}
	a.used, a.unsaved = false, false
	return nil
}

// sharesSecrets reports whether all nodes share secrets.
func (a *Access) sharesSecrets() bool { return a.table != nil && a.keys.shared != nil }

// sealers returns the keys that seal new values.
func (a *Access) sealers() keyring {
	if a.sharesSecrets() {
		return a.keys.shared
	}
	return a.keys.own
}

// seconds returns the current time in whole seconds, as records hold it.
func (a *Access) seconds() time.Time { return a.cfg.Now().UTC().Truncate(time.Second) }
