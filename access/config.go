package access

import (
	"cmp"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"
)

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
