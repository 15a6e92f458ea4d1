package api

import "time"

// Quotas bound what a tenant has at one time; 0 is no bound, but for Builds.
type Quotas struct {
	Instances       int64 `json:"instances"`         // sandboxes of its functions, idle ones too, and of its containers
	MemoryBytes     int64 `json:"memory_bytes"`      // their limits together
	CPUMillis       int64 `json:"cpu_millis"`        // likewise, in thousandths of a CPU
	Images          int64 `json:"images"`            // of its functions
	ImageBytes      int64 `json:"image_bytes"`       // their files, those they share counted for each
	WorkBytes       int64 `json:"work_bytes"`        // in /work; holds from the engine's next start where it is in use
	EventsPerSecond int64 `json:"events_per_second"` // by the gateway and the control API
	Builds          int64 `json:"builds"`            // at a time, others wait; 0: 4
}

// Tenant is a tenant with what it has now.
type Tenant struct {
	Name        string    `json:"name"`
	Created     time.Time `json:"created,omitzero"` // of its record; none for tenants that only templates name
	Quotas      Quotas    `json:"quotas"`
	Functions   int64     `json:"functions"`
	Instances   int64     `json:"instances"`
	Containers  int64     `json:"containers"`   // of the instances: what Docker's clients, fre run and fre create have started
	MemoryBytes int64     `json:"memory_bytes"` // its instances' limits together
	CPUMillis   int64     `json:"cpu_millis"`
	Images      int64     `json:"images"`
	ImageBytes  int64     `json:"image_bytes"`
	WorkBytes   int64     `json:"work_bytes"`
	Builds      int64     `json:"builds"` // under way

	WaitingBuilds int64 `json:"waiting_builds"`
}

// TenantRequest makes a tenant's record.
type TenantRequest struct {
	Name   string `json:"name"`
	Quotas Quotas `json:"quotas"`
}

// Identity says as whom a client is known.
type Identity struct {
	Who    string   `json:"who"`
	Tenant string   `json:"tenant"` // "*" for all
	Scopes []string `json:"scopes"`
}

// Token is a token without its text.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Tenant   string    `json:"tenant"` // "*" for all
	Scopes   []string  `json:"scopes"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`   // none: never
	LastUsed time.Time `json:"last_used,omitzero"` // to the minute
	Replaced string    `json:"replaced,omitempty"` // id of the token in its place

	AccessKey string `json:"access_key,omitempty"` // id of its access key, if it has one
}

// TokenRequest makes a token.
type TokenRequest struct {
	Name        string   `json:"name"`
	Tenant      string   `json:"tenant"` // "*" for all
	Scopes      []string `json:"scopes"` // deploy, invoke, read, admin
	LifeSeconds int64    `json:"life_seconds,omitempty"`
	AccessKey   bool     `json:"access_key,omitempty"` // it can sign requests to Lambda's API, too
}

// TokenRotation puts a token in another's place.
type TokenRotation struct {
	GraceSeconds int64 `json:"grace_seconds"` // for which the old one holds yet
}

// NewToken is a token with its text, which is shown this once.
type NewToken struct {
	Token Token  `json:"token"`
	Text  string `json:"text"`

	SecretAccessKey string `json:"secret_access_key,omitempty"` // what Token.AccessKey signs with
}

// Secret is a secret without its value.
type Secret struct {
	Name    string    `json:"name"`
	Bytes   int64     `json:"bytes"`
	Updated time.Time `json:"updated"`
	Node    string    `json:"node,omitempty"` // of several nodes the one that alone has it
}
