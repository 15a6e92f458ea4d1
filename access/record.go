package access

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Quotas bound a tenant's use at any time. 0 means no bound.
type Quotas struct {
	Instances       int64 `json:"instances,omitempty"`         // running sandboxes of functions and containers
	MemoryBytes     int64 `json:"memory_bytes,omitempty"`      // sum of their memory limits
	CPUMillis       int64 `json:"cpu_millis,omitempty"`        // sum of their CPU limits
	Images          int64 `json:"images,omitempty"`            // images of its functions
	ImageBytes      int64 `json:"image_bytes,omitempty"`       // files of the images; shared files count for each image
	WorkBytes       int64 `json:"work_bytes,omitempty"`        // in /work; a change takes effect when the engine starts
	EventsPerSecond int64 `json:"events_per_second,omitempty"` // by the gateway and the control API
	Builds          int64 `json:"builds,omitempty"`            // at the same time; 0: as many as the engine allows
}

// EventBurst is the burst allowance, in seconds of the event rate.
const EventBurst = 2

func (q Quotas) check() error {
	for name, n := range map[string]int64{
		"instances": q.Instances, "memory": q.MemoryBytes, "cpu": q.CPUMillis, "images": q.Images, "image-bytes": q.ImageBytes, "work": q.WorkBytes, "events": q.EventsPerSecond, "builds": q.Builds,
	} {
		if n < 0 {
			return fmt.Errorf("quota %s: %d is %w: use 0 for no quota", name, n, ErrInvalid)
		}
	}
	if q.EventsPerSecond > 1e6 {
		return fmt.Errorf("quota events: %d each second is %w: 1000000 at most", q.EventsPerSecond, ErrInvalid)
	}
	return nil
}

// Tenant is a tenant's record. A Tenant is never modified.
type Tenant struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Quotas  Quotas    `json:"quotas"`
	Shared  bool      `json:"shared,omitempty"` // the table of a cluster has or had the record

	events *bucket // survives changes of the record
}

// same reports whether t, which may be nil, is the shared tenant other.
func (t *Tenant) same(other *Tenant) bool {
	return t != nil && t.Shared && t.Quotas == other.Quotas && t.Created.Equal(other.Created)
}

var tenantName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func checkTenant(name string) error {
	if !tenantName.MatchString(name) {
		return fmt.Errorf("%q is %w of a tenant: lower-case letters, digits and dashes, at most 63, not beginning with a dash", name, ErrName)
	}
	return nil
}

// A token is fre_ID_SECRET: 8 random bytes in hexadecimal, which find the record, and 32 in
// base64url. 256 random bits cannot be guessed, so a fast hash (SHA-256) protects them as well as a
// slow one, and checking tokens cannot keep the engine busy.
const (
	tokenPrefix = "fre_"
	idSize      = 16
	hashSize    = 64
	secretSize  = 43
)

// Token is a token as lists show it, without the secret, which is shown only once.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Tenant   string    `json:"tenant"` // AllTenants for all
	Scopes   []Scope   `json:"scopes"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used,omitzero"` // to the minute; zero: not yet
	Replaced string    `json:"replaced,omitempty"` // id of the successor

	AccessKey string `json:"access_key,omitempty"` // id of the access key, "" without one
}

// record is a token in access.json.
type record struct {
	Token
	Hash    string `json:"hash"`              // SHA-256 of the secret, in hexadecimal
	Signing []byte `json:"signing,omitempty"` // the access key's secret, sealed
	Shared  bool   `json:"shared,omitempty"`  // the table of a cluster has or had the token

	used *atomic.Int64 // Unix seconds; survives changes of the record
}

func (t *record) lastUsed() time.Time {
	if at := t.used.Load(); at != 0 {
		return time.Unix(at, 0).UTC()
	}
	return time.Time{}
}

func (t *record) shown() Token {
	out := t.Token
	out.LastUsed = t.lastUsed()
	return out
}

// valid reports whether a record read from disk is the token's.
func (t *record) valid(id string) bool { return t != nil && t.ID == id && len(t.Hash) == hashSize }

func (t *record) same(o *record) bool {
	return t.Shared == o.Shared && t.Hash == o.Hash && bytes.Equal(t.Signing, o.Signing) && t.Name == o.Name && t.Tenant == o.Tenant &&
		slices.Equal(t.Scopes, o.Scopes) && t.Created.Equal(o.Created) && t.Expires.Equal(o.Expires) && t.Replaced == o.Replaced && t.AccessKey == o.AccessKey
}

func (t *record) identity() Identity {
	return Identity{Who: fmt.Sprintf("token %s (%s)", t.Name, t.ID), Tenant: t.Tenant, Scopes: t.Scopes}
}

// elsewhere returns ErrUnavailable if only another node has the access key's secret.
func (t *record) elsewhere() error {
	if t.Signing != nil {
		return nil
	}
	return fmt.Errorf("%w: access key %s works only on the node that made the key: to share access keys, give all nodes the same cluster.key_file", ErrUnavailable, t.AccessKey)
}

// A token may have an access key, for clients that sign requests with a secret instead of sending
// it (AWS Signature Version 4). To verify a signature the server needs the secret itself; a hash is
// not enough. The secret is derived one-way from the token's text, and kept sealed like tenants'
// secrets.
//
//	id      FREA and the token's id, in capital letters: 20 characters, as AWS has them
//	secret  HMAC-SHA256 of "fre access key" by the token's text, base64: 43 characters
const accessKeyPrefix = "FREA"

// AccessKey derives the access key from a token's text.
func AccessKey(token string) (id, secret string) {
	rest := strings.TrimPrefix(token, tokenPrefix)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("fre access key"))
	return accessKeyID(rest[:min(idSize, len(rest))]), base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func accessKeyID(token string) string { return accessKeyPrefix + strings.ToUpper(token) }

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

// records are the tenants and tokens in force.
type records struct{ state atomic.Pointer[state] }

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

// Tenants returns the tenants with a record, sorted by name.
func (r *records) Tenants() []*Tenant {
	return slices.SortedFunc(maps.Values(r.state.Load().Tenants), func(x, y *Tenant) int { return cmp.Compare(x.Name, y.Name) })
}

// Tenant returns a tenant's record; fs.ErrNotExist without one.
func (r *records) Tenant(name string) (*Tenant, error) {
	if t := r.state.Load().Tenants[name]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("tenant %q: %w", name, fs.ErrNotExist)
}

// Quotas returns a tenant's quotas; no bounds without a record. A call is cheap.
func (r *records) Quotas(tenant string) Quotas {
	if t := r.state.Load().Tenants[tenant]; t != nil {
		return t.Quotas
	}
	return Quotas{}
}

// Tokens returns a tenant's tokens, or all tokens for AllTenants, oldest first.
func (r *records) Tokens(tenant string) []Token {
	var out []Token
	for _, t := range r.state.Load().Tokens {
		if tenant == AllTenants || t.Tenant == tenant {
			out = append(out, t.shown())
		}
	}
	slices.SortFunc(out, func(x, y Token) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return out
}

// Token returns a token by id; fs.ErrNotExist if unknown.
func (r *records) Token(id string) (Token, error) {
	if t := r.state.Load().Tokens[id]; t != nil {
		return t.shown(), nil
	}
	return Token{}, fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
}
