// Package access says who may do what: it knows tenants with their quotas, tokens,
// tenants' secrets, and writes down who has done what. It speaks no protocol and
// imports nothing of FRE; server, gateway and engine ask it.
//
//	DIR/access.json        tenants, tokens (their hashes), mode 0600
//	DIR/secrets.key        what secrets are sealed with, mode 0600 (or Config.KeyFile)
//	DIR/secrets/TENANT/NAME  a sealed secret
//	DIR/audit.ndjson       what was done, the newest lines; .1, .2, … before
//
// In a cluster tenants, tokens and secrets are those of all nodes (share.go), and the files
// the copy that a node begins with.
//
// The records stand apart from the store's database on purpose. That one is made anew
// from what images say when it is lost or damaged; who may use the engine must never be
// guessed. The records are few and change by people's hands, so that each change writes
// the file whole: aside, synced, renamed, its directory synced. A crash leaves the state
// before the change or after it.
//
// The main types: [Access] holds all of it; an [Identity] is somebody who has shown a
// token, [Quotas] bound a tenant, an [Entry] is a line of the audit log.
package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
)

// The errors callers tell apart. ErrExpired is an ErrToken, too.
var (
	ErrNoToken     = errors.New("a token is needed")
	ErrToken       = errors.New("the token is not valid")
	ErrExpired     = fmt.Errorf("%w: it has expired", ErrToken)
	ErrForbidden   = errors.New("the token does not allow this")
	ErrName        = errors.New("not a name")
	ErrInvalid     = errors.New("not possible")
	ErrExists      = errors.New("exists already")
	ErrUnavailable = errors.New("tokens of this kind cannot be checked now")
	ErrSecret      = errors.New("not a secret's value")
)

// SlowDownError says that too much came, and when more may come.
type SlowDownError struct {
	What  string
	After time.Duration
}

func (e *SlowDownError) Error() string { return "too many " + e.What }

// Config wires an Access. Dir and Log are required.
type Config struct {
	Dir     string // made if it is not there, mode 0700
	KeyFile string // of the keys secrets are sealed with; default secrets.key in Dir
	OIDC    []OIDC // whose tokens hold beside FRE's own
	// SharedKeyFile has the keys that all nodes of a cluster seal secrets with, the first for
	// new ones. It is never written. "": secrets are this node's own.
	SharedKeyFile string
	Log           *slog.Logger

	AuditBytes int64 // size of audit.ndjson before it is rotated; default 16 MiB
	AuditFiles int   // kept beside it; default 8

	Now  func() time.Time // default time.Now
	HTTP *http.Client     // to the issuers; default one with a time limit
}

// Access is safe for use by several goroutines.
type Access struct {
	cfg   Config
	audit *audit
	begun time.Time // what limiters count from

	state    atomic.Pointer[state] // replaced whole, under mu
	failures Addresses             // of authentication
	oidc     []*issuer

	table   Table     // nil: the engine is alone
	node    string    // what it is called among others
	shared  keyring   // that all nodes have; nil: none
	warnOwn sync.Once // that secrets of others are not here

	changing sync.Mutex // held by who changes something; before mu

	mu      sync.Mutex
	keys    keyring            // guarded by mu; changing is held as well where they change
	making  map[string]*record // with those that are on their way to the table
	used    bool               // LastUsed of some token has not been written
	caught  bool               // the table was read whole
	unsaved bool               // something of the table has not been written
}

// state is what access.json holds. Nobody changes one that was published.
type state struct {
	Tenants map[string]*Tenant `json:"tenants"`
	Tokens  map[string]*record `json:"tokens"` // by id

	rows    map[string]uint64 // revisions of the table's rows that are in it
	removed string            // the tenant that a change removes
}

func (s *state) clone() *state {
	return &state{Tenants: maps.Clone(s.Tenants), Tokens: maps.Clone(s.Tokens), rows: maps.Clone(s.rows)}
}

// Open reads what is there.
func Open(cfg Config) (_ *Access, err error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.KeyFile == "" {
		cfg.KeyFile = filepath.Join(cfg.Dir, "secrets.key")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{Timeout: 10 * time.Second}
	}
	for _, dir := range []string{cfg.Dir, filepath.Join(cfg.Dir, "secrets")} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return nil, fmt.Errorf("make %s: %w", dir, err)
		}
	}
	a := &Access{cfg: cfg, begun: time.Now()}
	s := &state{Tenants: map[string]*Tenant{}, Tokens: map[string]*record{}, rows: map[string]uint64{}}
	raw, err := os.ReadFile(a.file())
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", a.file(), err)
	}
	for id, t := range s.Tokens {
		if t == nil || t.ID != id || len(t.Hash) != hashSize {
			return nil, fmt.Errorf("read %s: token %q is damaged", a.file(), id)
		}
		t.used = new(atomic.Int64)
		if !t.LastUsed.IsZero() {
			t.used.Store(t.LastUsed.Unix())
		}
	}
	for name, t := range s.Tenants {
		if t == nil || t.Name != name {
			return nil, fmt.Errorf("read %s: tenant %q is damaged", a.file(), name)
		}
		t.events = new(bucket)
	}
	a.state.Store(s)
	for _, o := range cfg.OIDC {
		i, err := newIssuer(o, cfg)
		if err != nil {
			return nil, err
		}
		a.oidc = append(a.oidc, i)
	}
	if a.keys, err = openKeys(cfg.KeyFile); err != nil {
		return nil, err
	}
	if cfg.SharedKeyFile != "" {
		if a.shared, err = readKeys(cfg.SharedKeyFile); err != nil {
			return nil, err
		}
	}
	if err := a.finishRotation(); err != nil {
		return nil, err
	}
	a.failures = NewAddresses(Rate{Each: failureEvery, Burst: failureBurst})
	if a.audit, err = openAudit(filepath.Join(cfg.Dir, "audit.ndjson"), cfg.AuditBytes, cfg.AuditFiles); err != nil {
		return nil, err
	}
	return a, nil
}

// Close writes down when tokens were last used.
func (a *Access) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.used || a.unsaved {
		err = a.writeLocked(a.state.Load())
	}
	return errors.Join(err, a.audit.close())
}

func (a *Access) file() string { return filepath.Join(a.cfg.Dir, "access.json") }

// change publishes what edit makes of a copy of the state, once it is on the disk, of a
// cluster in its table. edit replaces records, it does not change them; it may be called
// again, with what another node has made meanwhile.
func (a *Access) change(edit func(*state) error) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	if a.table != nil {
		return a.changeShared(edit)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.state.Load().clone()
	if err := edit(next); err != nil {
		return err
	}
	if err := a.writeLocked(next); err != nil {
		return err
	}
	a.state.Store(next)
	return nil
}

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
	if err := writeWhole(a.file(), append(raw, '\n')); err != nil {
		return fmt.Errorf("write access records: %w", err)
	}
	a.used, a.unsaved = false, false
	return nil
}

// writeWhole replaces a file, of mode 0600: after a crash it is the old or the new one.
func writeWhole(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

var tenantName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func checkTenant(name string) error {
	if !tenantName.MatchString(name) {
		return fmt.Errorf("%q is %w of a tenant: lower-case letters, digits and dashes, at most 63, not beginning with a dash", name, ErrName)
	}
	return nil
}
