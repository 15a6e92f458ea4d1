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
	"cmp"
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

	"github.com/fre-engine/fre/failure"
)

// Errors that callers distinguish. ErrExpired is an ErrToken too.
var (
	ErrNoToken     = failure.New(failure.Unauthorized, "a token is needed", "set FRE_TOKEN or FRE_TOKEN_FILE; create a token with fre token create")
	ErrToken       = failure.New(failure.Unauthorized, "the token is not valid", "")
	ErrExpired     = failure.Wrap(failure.Unauthorized, fmt.Errorf("%w: expired", ErrToken), "create another token (fre token create); rotate tokens before the end (fre token rotate)")
	ErrForbidden   = failure.New(failure.Forbidden, "the token does not allow the request", "ask the operator for a token with the missing scope")
	ErrName        = failure.New(failure.BadRequest, "not a name", "")
	ErrInvalid     = failure.New(failure.BadRequest, "not possible", "")
	ErrExists      = failure.New(failure.Exists, "exists already", "")
	ErrUnavailable = failure.New(failure.TokenUnchecked, "the engine cannot check the token now", "")
	ErrSecret      = failure.New(failure.BadRequest, "not a secret's value", "")
)

// SlowDownError says that a rate limit is exceeded, and when the client may try again.
type SlowDownError struct {
	What  string
	Quota bool // the limit is the tenant's quota of events, not the limit of an address
	After time.Duration
}

func (e *SlowDownError) Error() string { return "too many " + e.What }

// Code returns [failure.Quota] or [failure.SlowDown].
func (e *SlowDownError) Code() failure.Code {
	if e.Quota {
		return failure.Quota
	}
	return failure.SlowDown
}

// Next returns the user's next step.
func (e *SlowDownError) Next() string { return "wait for the seconds in Retry-After" }

// RetryAfter returns After, at least a second.
func (e *SlowDownError) RetryAfter() time.Duration { return max(e.After, time.Second) }

// Config wires an Access. Dir and Log are required.
type Config struct {
	Dir     string // created if missing, mode 0700
	KeyFile string // keys that seal secrets; default secrets.key in Dir
	OIDC    []OIDC // issuers whose tokens are accepted beside FRE's own
	// SharedKeyFile has the keys with which all nodes of a cluster seal secrets; the first key
	// seals new secrets. FRE never writes the file. "": each node has secrets of its own.
	SharedKeyFile string
	Log           *slog.Logger

	AuditBytes int64 // size at which audit.ndjson is rotated; default 16 MiB
	AuditFiles int   // rotated files kept; default 8

	Now  func() time.Time // default time.Now
	HTTP *http.Client     // for requests to issuers; default a client with a time limit
}

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

// records are the tenants and tokens in force.
type records struct{ state atomic.Pointer[state] }

// state is the content of access.json. A published state never changes.
type state struct {
	Tenants map[string]*Tenant `json:"tenants"`
	Tokens  map[string]*record `json:"tokens"` // by id

	rows    map[string]uint64 // revisions of the table's rows included
	removed string            // tenant that a change removes
}

func (s *state) clone() *state {
	return &state{Tenants: maps.Clone(s.Tenants), Tokens: maps.Clone(s.Tokens), rows: maps.Clone(s.rows)}
}

// Open reads the records in cfg.Dir, or creates them.
func Open(cfg Config) (_ *Access, err error) {
	cfg.setDefaults()
	a := &Access{cfg: cfg, begun: time.Now(), secrets: secretFiles(filepath.Join(cfg.Dir, "secrets"))}
	if err := makeDirs(cfg.Dir, string(a.secrets)); err != nil {
		return nil, err
	}
	s, err := readState(a.file())
	if err != nil {
		return nil, err
	}
	a.state.Store(s)
	for _, o := range cfg.OIDC {
		i, err := newIssuer(o, cfg)
		if err != nil {
			return nil, err
		}
		a.oidc = append(a.oidc, i)
	}
	if a.keys.own, err = openKeys(cfg.KeyFile); err != nil {
		return nil, err
	}
	if cfg.SharedKeyFile != "" {
		if a.keys.shared, err = readKeys(cfg.SharedKeyFile); err != nil {
			return nil, err
		}
	}
	if err := a.finishRotation(); err != nil {
		return nil, err
	}
	a.failures = NewAddresses(Rate{Each: failureEvery, Burst: failureBurst})
	if a.audit, err = openAudit(filepath.Join(cfg.Dir, "audit.ndjson"), &cfg); err != nil {
		return nil, err
	}
	return a, nil
}

func (c *Config) setDefaults() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.KeyFile == "" {
		c.KeyFile = filepath.Join(c.Dir, "secrets.key")
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{Timeout: 10 * time.Second}
	}
	c.AuditBytes, c.AuditFiles = cmp.Or(c.AuditBytes, 16<<20), cmp.Or(c.AuditFiles, 8)
}

// makeDirs makes directories that only the engine's user may enter.
func makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	return nil
}

// valid reports whether a record read from disk is the token's.
func (t *record) valid(id string) bool { return t != nil && t.ID == id && len(t.Hash) == hashSize }

// readState reads the records. A missing file has none.
func readState(file string) (*state, error) {
	s := &state{Tenants: map[string]*Tenant{}, Tokens: map[string]*record{}, rows: map[string]uint64{}}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for id, t := range s.Tokens {
		if !t.valid(id) {
			return nil, fmt.Errorf("read %s: token %q is damaged", file, id)
		}
		t.used = new(atomic.Int64)
		if !t.LastUsed.IsZero() {
			t.used.Store(t.LastUsed.Unix())
		}
	}
	for name, t := range s.Tenants {
		if t == nil || t.Name != name {
			return nil, fmt.Errorf("read %s: tenant %q is damaged", file, name)
		}
		t.events = new(bucket)
	}
	return s, nil
}

// Close writes the times of tokens' last use.
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

// change applies edit to a copy of the state, writes the copy to disk or, in a cluster, to the
// table, and publishes it. edit must replace records and not modify them. edit may be called again
// with a newer state, if another node made a change meanwhile.
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

// writeWhole replaces a file of mode 0600: a crash leaves the old file or the new one.
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
