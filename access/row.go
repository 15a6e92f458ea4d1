package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Table holds the records of all engines of a cluster: rows of bytes by key, each replaced by
// compare-and-swap. A change that cannot be written to the table does not happen.
//
//	tenant.NAME         a tenant: its quotas, its tokens' hashes
//	tenants             the tokens for all tenants
//	secret.TENANT.NAME  a secret, sealed by a key that all nodes have; NAME in base64url
//
// A tenant and its tokens are one row, so that a change of the tenant is atomic. access.json is the
// copy from which a node starts, and which it uses while cut off.
type Table interface {
	// Ready returns once Take was called for all rows written so far. An error says why the node
	// cannot write now.
	Ready(ctx context.Context) error
	// Write writes a row unless the row's revision has changed since revision (0: the row is new).
	// Otherwise won is false.
	Write(ctx context.Context, key string, value []byte, revision uint64) (now uint64, won bool, err error)
}

const (
	rowProtocol = 1
	// MaxRow is the largest row in bytes: a tenant with about 1,500 tokens.
	MaxRow = 768 << 10

	tablePatience = 10 * time.Second // for one change
	tableTries    = 16               // if other nodes change the same row

	keyTenant  = "tenant."
	keyTenants = "tenants" // the tokens for all tenants
	keySecret  = "secret."
)

// tenantRow is a tenant's row in the table.
type tenantRow struct {
	Protocol int          `json:"protocol"`
	Node     string       `json:"node"`              // the writer
	Tenant   string       `json:"tenant"`            // AllTenants: the row of the tokens for all tenants
	Removed  bool         `json:"removed,omitempty"` // with tokens and quotas
	Record   *tenantFacts `json:"record,omitempty"`  // nil for a tenant without quotas
	Tokens   []tokenFacts `json:"tokens,omitempty"`
}

type tenantFacts struct {
	Created time.Time `json:"created"`
	Quotas  Quotas    `json:"quotas"`
}

type tokenFacts struct {
	Token
	Hash    string `json:"hash"`
	Signing []byte `json:"signing,omitempty"` // sealed by a key of all nodes; otherwise absent
}

// secretRow is a secret's row in the table.
type secretRow struct {
	Protocol int       `json:"protocol"`
	Node     string    `json:"node"`
	Tenant   string    `json:"tenant"`
	Name     string    `json:"name"`
	Removed  bool      `json:"removed,omitempty"`
	Updated  time.Time `json:"updated"`
	Sealed   []byte    `json:"sealed,omitempty"`
}

func rowKey(tenant string) string {
	if tenant == AllTenants {
		return keyTenants
	}
	return keyTenant + tenant
}

// secretKey returns the key of a secret's row. Names of secrets may have dots in places where keys
// may not.
func secretKey(tenant, name string) string {
	return keySecret + tenant + "." + base64.RawURLEncoding.EncodeToString([]byte(name))
}

// decodeTenant decodes and checks a row written by another node.
func decodeTenant(key string, raw []byte) (*tenantRow, error) {
	r := new(tenantRow)
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, err
	}
	if err := checkProtocol(r.Protocol, r.Node); err != nil {
		return nil, err
	}
	if r.Tenant != AllTenants {
		if err := checkTenant(r.Tenant); err != nil {
			return nil, err
		}
	}
	if rowKey(r.Tenant) != key {
		return nil, fmt.Errorf("record of %q", r.Tenant)
	}
	if err := r.checkRecord(); err != nil {
		return nil, err
	}
	if err := r.checkTokens(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *tenantRow) checkRecord() error {
	if r.Record == nil {
		return nil
	}
	if r.Removed || r.Tenant == AllTenants {
		return errors.New("quotas of no tenant")
	}
	return r.Record.Quotas.check()
}

func (r *tenantRow) checkTokens() error {
	if r.Removed && len(r.Tokens) > 0 {
		return errors.New("tokens of a removed tenant")
	}
	seen := map[string]bool{}
	for _, t := range r.Tokens {
		if t.Tenant != r.Tenant || seen[t.ID] || !isHex(t.ID, idSize) || !isHex(t.Hash, hashSize) || t.AccessKey != "" && t.AccessKey != accessKeyID(t.ID) {
			return fmt.Errorf("token %q is damaged", t.ID)
		}
		seen[t.ID] = true
	}
	return nil
}

func isHex(s string, size int) bool {
	return len(s) == size && strings.Trim(s, "0123456789abcdef") == ""
}

func checkProtocol(protocol int, node string) error {
	if protocol < 1 || protocol > rowProtocol+1 {
		return fmt.Errorf("node %s wrote protocol %d, and the present node knows %d: upgrade the older node", node, protocol, rowProtocol)
	}
	return nil
}

// decodeSecret decodes and checks a row written by another node.
func decodeSecret(key string, raw []byte) (*secretRow, error) {
	r := new(secretRow)
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, err
	}
	if err := errors.Join(checkProtocol(r.Protocol, r.Node), checkSecret(r.Tenant, r.Name)); err != nil {
		return nil, err
	}
	if secretKey(r.Tenant, r.Name) != key {
		return nil, fmt.Errorf("record of secret %q of tenant %q", r.Name, r.Tenant)
	}
	if n := int64(len(r.Sealed)); r.Removed != (n == 0) || n > MaxSecretBytes+sealedSize {
		return nil, fmt.Errorf("value of %d bytes", n)
	}
	return r, nil
}

// opens checks that the key of all nodes opens the secret.
func (k keyrings) opens(r *secretRow) error {
	if r.Removed {
		return nil
	}
	opened, err := k.shared.open(r.Tenant, r.Name, r.Sealed)
	if errors.Is(err, errKey) {
		return fmt.Errorf("%w: give all nodes the same cluster.key_file", err)
	}
	if err != nil {
		return err
	}
	clear(opened)
	return nil
}

// parseSecret parses a secret's row. Without a value the secret was removed.
func parseSecret(key string, value []byte) (*secretRow, error) {
	if value != nil {
		return decodeSecret(key, value)
	}
	tenant, encoded, _ := strings.Cut(strings.TrimPrefix(key, keySecret), ".")
	name, err := base64.RawURLEncoding.DecodeString(encoded)
	if err = errors.Join(err, checkSecret(tenant, string(name))); err != nil {
		return nil, err
	}
	return &secretRow{Tenant: tenant, Name: string(name), Removed: true}, nil
}
