package daemon

import (
	"fmt"

	"github.com/fre-engine/fre/template"
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

// OpenFaaS configures the answers to OpenFaaS's clients.
type OpenFaaS struct {
	Builders        []Builder
	MaxContextBytes int64 // 0: the default of adapters/openfaas
}

// Builder is a client of OpenFaaS that signs source code with a secret, for a tenant.
type Builder struct {
	Tenant string
	Secret []byte
}

// read copies the given fields; the rest keep their defaults. nil: OpenFaaS is off.
func (c *openfaasConfig) read(cfg *Config) error {
	if c == nil {
		return nil
	}
	out := &OpenFaaS{}
	tenants := map[string]bool{}
	for i, b := range c.Builders {
		if b.Tenant == "" {
			b.Tenant = template.DefaultTenant
		}
		if !template.ValidName(b.Tenant) || tenants[b.Tenant] {
			return fmt.Errorf("builders[%d].tenant: %q is not a tenant's name, or named twice", i, b.Tenant)
		}
		tenants[b.Tenant] = true
		secret, err := readSecret(b.SecretFile)
		if err != nil {
			return fmt.Errorf("builders[%d].secret_file: %w", i, err)
		}
		if len(secret) < minBuilderSecret {
			return fmt.Errorf("builders[%d].secret_file: less than %d bytes", i, minBuilderSecret)
		}
		out.Builders = append(out.Builders, Builder{Tenant: b.Tenant, Secret: secret})
	}
	if c.MaxContext != "" {
		n, err := template.ParseBytes(c.MaxContext)
		if err != nil || n < 64<<10 {
			return fmt.Errorf("max_context: %q is no size of 64KiB or more", c.MaxContext)
		}
		out.MaxContextBytes = n
	}
	cfg.OpenFaaS = out
	return nil
}
