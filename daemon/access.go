package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/template"
)

// accessConfig is the configuration file's access.
type accessConfig struct {
	Invoke    string `yaml:"invoke"`
	AllowOpen bool   `yaml:"allow_open"`
	KeyFile   string `yaml:"key_file"`

	Clients struct {
		Rate  float64 `yaml:"rate"`
		Burst int     `yaml:"burst"`
	} `yaml:"clients"`

	CORS *struct {
		Origins     []string `yaml:"origins"`
		Methods     []string `yaml:"methods"`
		Headers     []string `yaml:"headers"`
		Credentials bool     `yaml:"credentials"`
		MaxAge      string   `yaml:"max_age"`
	} `yaml:"cors"`

	Audit struct {
		MaxSize string `yaml:"max_size"`
		Files   int    `yaml:"files"`
	} `yaml:"audit"`

	OIDC []struct {
		Issuer      string         `yaml:"issuer"`
		Audience    string         `yaml:"audience"`
		Tenant      string         `yaml:"tenant"`
		TenantClaim string         `yaml:"tenant_claim"`
		Scopes      []access.Scope `yaml:"scopes"`
		ScopesClaim string         `yaml:"scopes_claim"`
	} `yaml:"oidc"`
}

// Access is the configuration of tenants, tokens and quotas.
type Access struct {
	records access.Config
	guard   gateway.Guard
	clients access.Rate // Each 0: no limit
}

func (c *accessConfig) read(cfg *Config) error {
	s := &cfg.Access
	switch c.Invoke {
	case "", "open":
	case "token":
		s.guard.Token = true
	default:
		return fmt.Errorf("invoke: %q is neither token nor open", c.Invoke)
	}
	s.guard.AllowOpen = c.AllowOpen
	if c.KeyFile != "" && !filepath.IsAbs(c.KeyFile) {
		return fmt.Errorf("key_file: %q is not an absolute path", c.KeyFile)
	}
	s.records.KeyFile = c.KeyFile
	for _, read := range []func(*Access) error{c.readClients, c.readCORS, c.readAudit} {
		if err := read(s); err != nil {
			return err
		}
	}
	for _, o := range c.OIDC {
		s.records.OIDC = append(s.records.OIDC, access.OIDC(o))
	}
	return nil
}

func (c *accessConfig) readClients(s *Access) error {
	r := c.Clients
	if r.Rate == 0 && r.Burst == 0 {
		return nil
	}
	if r.Rate <= 0 || r.Rate > 1e6 || r.Burst < 0 {
		return fmt.Errorf("clients: a rate of %g with a burst of %d: give requests each second, and how many may come at once", r.Rate, r.Burst)
	}
	if r.Burst == 0 {
		r.Burst = max(1, int(2*r.Rate))
	}
	s.clients = access.Rate{Each: time.Duration(float64(time.Second) / r.Rate), Burst: r.Burst}
	return nil
}

func (c *accessConfig) readCORS(s *Access) error {
	o := c.CORS
	if o == nil {
		return nil
	}
	s.guard.CORS = &engine.CORS{Origins: o.Origins, Methods: o.Methods, Headers: o.Headers, Credentials: o.Credentials}
	if o.MaxAge != "" {
		var err error
		if s.guard.CORS.MaxAge, err = time.ParseDuration(o.MaxAge); err != nil {
			return fmt.Errorf("cors.max_age: %q is not a duration, for example 5m", o.MaxAge)
		}
	}
	return s.guard.CORS.Check()
}

func (c *accessConfig) readAudit(s *Access) error {
	if c.Audit.MaxSize != "" {
		n, err := template.ParseBytes(c.Audit.MaxSize)
		if err != nil || n < 64<<10 {
			return fmt.Errorf("audit.max_size: %q is no size of 64KiB or more", c.Audit.MaxSize)
		}
		s.records.AuditBytes = n
	}
	if c.Audit.Files < 0 {
		return fmt.Errorf("audit.files: %d is negative", c.Audit.Files)
	}
	s.records.AuditFiles = c.Audit.Files
	return nil
}

// open opens the records below the state directory and completes the guard.
func (s *Access) open(state string, log *slog.Logger) (*access.Access, error) {
	s.records.Dir, s.records.Log = filepath.Join(state, "access"), log
	a, err := access.Open(s.records)
	if err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	s.guard.Access = a
	if s.clients.Each > 0 {
		s.guard.Clients = access.NewAddresses(s.clients)
	}
	return a, nil
}

// quotasOf adapts access to the engine's question for quotas.
func quotasOf(a *access.Access) func(string) live.Quotas {
	return func(tenant string) live.Quotas {
		q := a.Quotas(tenant)
		return live.Quotas{
			Instances: q.Instances, MemoryBytes: q.MemoryBytes, CPUMillis: q.CPUMillis, Images: q.Images, ImageBytes: q.ImageBytes, WorkBytes: q.WorkBytes,
			Builds: q.Builds,
		}
	}
}

// ACME is the configuration file's tls.acme.
type ACME struct {
	Hosts     []string `yaml:"hosts"`
	Email     string   `yaml:"email"`
	Directory string   `yaml:"directory"`
}

func (c *ACME) read(cfg *Config) error {
	cfg.ACME = c
	if c == nil {
		return nil
	}
	if len(c.Hosts) == 0 {
		return errors.New("hosts: list the host names for certificates")
	}
	return nil
}

// tls gets certificates by ACME (RFC 8555) at their first use, and renews them before they expire.
// The authority connects to the host's port 443 (tls-alpn-01, RFC 8737), so no further listener is
// needed.
func (c *ACME) tls(state string) *tls.Config {
	m := &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(filepath.Join(state, "acme")), HostPolicy: autocert.HostWhitelist(c.Hosts...), Email: c.Email,
	}
	if c.Directory != "" {
		m.Client = &acme.Client{DirectoryURL: c.Directory}
	}
	return &tls.Config{GetCertificate: m.GetCertificate, NextProtos: []string{"h2", "http/1.1", acme.ALPNProto}, MinVersion: tls.VersionTLS12}
}

// readProxies parses --trusted-proxies: ranges or single addresses.
func readProxies(ranges []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range ranges {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil || p != p.Masked() || p.Addr().Zone() != "" {
			return nil, failure.Hint(fmt.Errorf("--trusted-proxies: %q is neither a range, for example 10.1.0.0/16, nor an address", s), "list your own proxies only: FRE trusts their headers about clients")
		}
		all = append(all, p)
	}
	return all, nil
}

// gatewayTLS loads --tls-cert and --tls-key; nil without them.
func gatewayTLS(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	switch {
	case certFile == "" && keyFile == "":
		return nil, nil
	case certFile == "" || keyFile == "":
		return nil, failure.Hint(errors.New("--tls-cert and --tls-key belong together"), "give both, or none for a gateway in the clear")
	}
	cert, err := httpserver.LoadCertificate(certFile, keyFile, log)
	if err != nil {
		return nil, failure.Hint(err, "give a certificate and the certificate's key, both PEM")
	}
	return &tls.Config{GetCertificate: cert.Get}, nil
}

// listenAPI listens at the remote control API's address: beyond loopback with TLS only.
func listenAPI(address string, secure *tls.Config, bound func(net.Listener) net.Listener) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if secure == nil && (err != nil || !at.Addr().IsLoopback()) {
		return nil, failure.Hint(
			fmt.Errorf("--api-listen %s: tokens would be sent in the clear", address),
			"give --tls-cert and --tls-key, or tls.acme in the configuration; without TLS use a loopback address, for example 127.0.0.1:8443")
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, failure.Hint(err, "give another address with --api-listen")
	}
	l = bound(l)
	if secure == nil {
		return l, nil
	}
	return tls.NewListener(l, onlyHTTP1(secure)), nil // HTTP/1 only: fre run takes the connection over
}

// onlyHTTP1 is for listeners with their own TLS: net/http speaks HTTP/2 only over its own TLS.
func onlyHTTP1(secure *tls.Config) *tls.Config {
	secure = secure.Clone()
	secure.NextProtos = []string{"http/1.1"}
	if secure.GetCertificate != nil {
		secure.NextProtos = append(secure.NextProtos, acme.ALPNProto)
	}
	return secure
}
