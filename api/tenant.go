package api

import "time"

// Quotas limits a tenant's current usage. 0 means no limit, except for Builds.
type Quotas struct {
	Instances       int64 `json:"instances"`         // sandboxes of functions, including idle ones, and of containers
	MemoryBytes     int64 `json:"memory_bytes"`      // sum of the instances' limits
	CPUMillis       int64 `json:"cpu_millis"`        // likewise, in thousandths of a CPU
	Images          int64 `json:"images"`            // images of the tenant's functions
	ImageBytes      int64 `json:"image_bytes"`       // size of the files, with shared files counted for each image
	WorkBytes       int64 `json:"work_bytes"`        // size of /work; if /work is in use, takes effect at the engine's next start
	EventsPerSecond int64 `json:"events_per_second"` // over the gateway and the control API
	Builds          int64 `json:"builds"`            // concurrent builds, further builds wait; 0: 4
}

// Tenant is a tenant with its current usage.
type Tenant struct {
	Name        string    `json:"name"`
	Created     time.Time `json:"created,omitzero"` // creation of the record; zero for a tenant without a record
	Quotas      Quotas    `json:"quotas"`
	Functions   int64     `json:"functions"`
	Instances   int64     `json:"instances"`
	Containers  int64     `json:"containers"`   // share of Instances started by Docker clients, fre run and fre create
	MemoryBytes int64     `json:"memory_bytes"` // sum of the instances' limits
	CPUMillis   int64     `json:"cpu_millis"`
	Images      int64     `json:"images"`
	ImageBytes  int64     `json:"image_bytes"`
	WorkBytes   int64     `json:"work_bytes"`
	Builds      int64     `json:"builds"` // in progress

	WaitingBuilds int64 `json:"waiting_builds"`
}

// TenantRequest creates a tenant's record.
type TenantRequest struct {
	Name   string `json:"name"`
	Quotas Quotas `json:"quotas"`
}

// Identity is the caller's identity, as known to the engine.
type Identity struct {
	Who    string   `json:"who"`
	Tenant string   `json:"tenant"` // "*" for all
	Scopes []string `json:"scopes"`
}

// Token is a token without the secret text.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Tenant   string    `json:"tenant"` // "*" for all
	Scopes   []string  `json:"scopes"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used,omitzero"` // precise to the minute
	Replaced string    `json:"replaced,omitempty"` // id of the successor

	AccessKey string `json:"access_key,omitempty"` // id of the access key, if any
}

// TokenRequest creates a token.
type TokenRequest struct {
	Name        string   `json:"name"`
	Tenant      string   `json:"tenant"` // "*" for all
	Scopes      []string `json:"scopes"` // deploy, invoke, read, admin
	LifeSeconds int64    `json:"life_seconds,omitempty"`
	AccessKey   bool     `json:"access_key,omitempty"` // also create an access key to sign requests to Lambda's API
}

// TokenRotation replaces a token.
type TokenRotation struct {
	GraceSeconds int64 `json:"grace_seconds"` // time until the old token expires
}

// NewToken is a token with the secret text, which the engine shows only once.
type NewToken struct {
	Token Token  `json:"token"`
	Text  string `json:"text"`

	SecretAccessKey string `json:"secret_access_key,omitempty"` // signing key for Token.AccessKey
}

// Secret is a secret without its value.
type Secret struct {
	Name    string    `json:"name"`
	Bytes   int64     `json:"bytes"`
	Updated time.Time `json:"updated"`
	Node    string    `json:"node,omitempty"` // in a cluster: the only node with the secret
}
