package debian

import (
	"context"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"
)

// aptConfig holds the used options of apt.conf(5).
type aptConfig struct {
	proxy        map[string]string // scheme → proxy address
	allowExpired bool              // Acquire::Check-Valid-Until "false"
}

// readAptConfig asks apt-config; on a host without apt-config the result is empty.
func readAptConfig(ctx context.Context) aptConfig {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return aptConfig{}
	}
	return parseAptConfig(string(out))
}

func parseAptConfig(dump string) aptConfig {
	c := aptConfig{proxy: map[string]string{}}
	for l := range strings.Lines(dump) {
		key, value, _ := strings.Cut(strings.TrimSpace(l), " ")
		value = strings.Trim(strings.TrimSuffix(value, ";"), `"`)
		switch strings.ToLower(key) {
		case "acquire::http::proxy":
			c.proxy["http"] = value
		case "acquire::https::proxy":
			c.proxy["https"] = value
		case "acquire::check-valid-until":
			c.allowExpired = no(value)
		}
	}
	return c
}

// newClient takes proxies from the environment first, then from apt's configuration.
func newClient(apt aptConfig) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = 30 * time.Second
	t.MaxIdleConnsPerHost = downloads
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		u, err := http.ProxyFromEnvironment(r)
		if u != nil || err != nil {
			return u, err
		}
		p := apt.proxy[r.URL.Scheme]
		if p == "" && r.URL.Scheme == "https" {
			p = apt.proxy["http"] // as apt does
		}
		if p == "" || strings.EqualFold(p, "DIRECT") {
			return nil, nil
		}
		return url.Parse(p)
	}
	return &http.Client{Transport: t}
}

// no reports whether s is apt's spelling of false; unset is not false.
func no(s string) bool {
	switch strings.ToLower(s) {
	case "no", "false", "without", "off", "disable", "0":
		return true
	}
	return false
}

const downloads = 8 // at once
