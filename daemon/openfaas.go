package daemon

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/adapters/openfaas"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/image"
)

// openfaasConfig is the configuration file's openfaas. Without it the gateway answers only the
// OpenFaaS routes that are also the gateway's own.
type openfaasConfig struct {
	Builders []struct {
		Tenant     string `yaml:"tenant"`
		SecretFile string `yaml:"secret_file"`
	} `yaml:"builders"`
	MaxContext string `yaml:"max_context"`
}

// minBuilderSecret is the length in bytes of a secret that cannot be guessed.
const minBuilderSecret = 16

// read copies the given fields; the rest keep their defaults. nil: OpenFaaS is off.
func (c *openfaasConfig) read() (*openfaas.Config, error) {
	if c == nil {
		return nil, nil
	}
	out := &openfaas.Config{}
	tenants := map[string]bool{}
	for i, b := range c.Builders {
		if b.Tenant == "" {
			b.Tenant = image.DefaultTenant
		}
		if !image.ValidName(b.Tenant) || tenants[b.Tenant] {
			return nil, fmt.Errorf("builders[%d].tenant: %q is not a tenant's name, or there twice", i, b.Tenant)
		}
		tenants[b.Tenant] = true
		secret, err := readSecret(b.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("builders[%d].secret_file: %w", i, err)
		}
		if len(secret) < minBuilderSecret {
			return nil, fmt.Errorf("builders[%d].secret_file: it holds less than %d bytes", i, minBuilderSecret)
		}
		out.Builders = append(out.Builders, openfaas.Builder{Tenant: b.Tenant, Secret: secret})
	}
	if c.MaxContext != "" {
		n, err := image.ParseBytes(c.MaxContext)
		if err != nil || n < 64<<10 {
			return nil, fmt.Errorf("max_context: %q is no size of 64KiB or more", c.MaxContext)
		}
		out.MaxContextBytes = n
	}
	return out, nil
}

// openOpenFaaS returns the gateway's handler for OpenFaaS's clients; nil without one.
func openOpenFaaS(cfg *openfaas.Config, at net.Addr, secure bool, eng *engine.Engine, queue *events.Service, records *access.Access, scratch func() (string, error), log *slog.Logger, version api.Version) (http.Handler, error) {
	if cfg == nil {
		return nil, nil
	}
	if tcp, ok := at.(*net.TCPAddr); !secure && (!ok || !tcp.IP.IsLoopback()) {
		return nil, &hintError{
			fmt.Errorf("openfaas: tokens would be sent in the clear to %s", at),
			"give --tls-cert and --tls-key, or tls.acme in the configuration; without TLS the gateway can listen on an address such as 127.0.0.1:8080",
		}
	}
	cfg.Engine, cfg.Events, cfg.Access, cfg.Scratch, cfg.Log, cfg.Version = eng, queue, records, scratch, log, version
	return openfaas.New(*cfg), nil
}
