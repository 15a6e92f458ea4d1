package daemon

import (
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fre-engine/fre/internal/outward"
)

// issuers is the HTTP client for issuers of tokens. It reaches the issuers' own servers; further
// hosts that an issuer names are reachable only if tenants may reach them.
func (cfg *Config) issuers() *http.Client {
	r := cfg.outward()
	for _, o := range cfg.Access.records.OIDC {
		if u, err := url.Parse(o.Issuer); err == nil {
			r.Hosts = append(r.Hosts, outward.Address(u))
		}
	}
	return &http.Client{Timeout: 10 * time.Second, Transport: r.Transport()}
}

// outward is the rule for connections on behalf of tenants: the public internet, and the ranges and
// servers of the configuration.
func (cfg *Config) outward() outward.Rule {
	r := outward.Rule{Networks: cfg.Egress.AllowPrivate}
	for _, host := range cfg.InsecureRegistries {
		if _, _, err := net.SplitHostPort(host); err == nil {
			r.Hosts = append(r.Hosts, host)
			continue
		}
		r.Hosts = append(r.Hosts, net.JoinHostPort(host, "80"), net.JoinHostPort(host, "443"))
	}
	for _, c := range cfg.Packages.Git {
		if u, err := url.Parse(c.URL); err == nil {
			r.Hosts = append(r.Hosts, outward.Address(u))
		}
	}
	return r
}
