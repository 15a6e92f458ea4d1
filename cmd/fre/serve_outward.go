package main

import (
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fre-engine/fre/internal/outward"
)

// issuers is the client for what issuers of tokens answer: it reaches their own servers,
// and what those name besides only where tenants do.
func (cfg *serveConfig) issuers() *http.Client {
	r := cfg.outward()
	for _, o := range cfg.Access.records.OIDC {
		if u, err := url.Parse(o.Issuer); err == nil {
			r.Hosts = append(r.Hosts, outward.Address(u))
		}
	}
	return &http.Client{Timeout: 10 * time.Second, Transport: r.Transport()}
}

// outward is what tenants may have the engine connect to beside the public internet: the
// ranges and servers that the configuration names.
func (cfg *serveConfig) outward() outward.Rule {
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
