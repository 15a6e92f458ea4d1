package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"

	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/template"
)

// Lambda is the configuration file's lambda: AWS Lambda's API, on a separate listener. The
// API's requests are control actions like the control API's, but have other sizes of bodies and
// signatures over the path as sent. The gateway's server supports neither.
type Lambda struct {
	Listen   string `yaml:"listen"`
	Region   string `yaml:"region"`
	Unsigned string `yaml:"unsigned"`
}

var regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]$`)

func (c *Lambda) read(cfg *Config) error {
	cfg.Lambda = c
	if c == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is no HOST:PORT", c.Listen)
	}
	if c.Region == "" {
		c.Region = awslambda.Region
	}
	if !regionName.MatchString(c.Region) {
		return fmt.Errorf("region: %q is not a region, for example us-east-1", c.Region)
	}
	if c.Unsigned == "" {
		return nil
	}
	if !template.ValidName(c.Unsigned) {
		return fmt.Errorf("unsigned: %q is no tenant", c.Unsigned)
	}
	if !loopback(c.Listen) {
		return errors.New("unsigned: anyone with access to the address could deploy: listen on loopback, or leave unsigned out and sign requests")
	}
	return nil
}

func loopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback()
}
