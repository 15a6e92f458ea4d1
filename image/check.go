package image

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/fre-engine/fre/template"
)

// Check refuses a configuration that no Builder makes, in an image from elsewhere: an image must
// not ask a host for more than a template may.
func (c *Config) Check() error {
	for name, list := range map[string][]string{"args": c.Args, "env": c.Env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return fmt.Errorf("%s: %q holds a NUL byte", name, s)
			}
		}
	}
	size := 0
	for _, v := range c.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("env: %q is no NAME=value", v)
		}
		size += len(v) + 1
	}
	if size > 2*template.MaxEnvBytes { // the template's and the runtime's
		return fmt.Errorf("env takes %d bytes: the limit is %s", size, template.FormatBytes(2*template.MaxEnvBytes))
	}
	if err := c.checkPipeline(); err != nil {
		return err
	}
	if len(c.Args) == 0 && c.Protocol != ProtocolPipeline {
		return errors.New("args: no program")
	}
	switch c.Protocol {
	case ProtocolNone:
		return nil // not a function: no further checks
	case ProtocolChannel, ProtocolStdio, ProtocolPipeline:
	case ProtocolSnapshot:
		return errors.New("the image is a snapshot of an agent's /work, not a function: use the image with fre agent create")
	default:
		return fmt.Errorf("unknown protocol %q: the image needs a newer FRE", c.Protocol)
	}
	if !template.ValidName(c.Tenant) {
		return fmt.Errorf("tenant %q is no name", c.Tenant)
	}
	return cmp.Or(c.Instances.Check(), c.Resources.Check(), c.Network.Check(), template.CheckAccess(c.Secrets, c.Access, c.CORS))
}

// checkPipeline is the part of Check about pipelines.
func (c *Config) checkPipeline() error {
	switch {
	case c.Protocol != ProtocolPipeline && len(c.Pipeline) > 0:
		return errors.New("pipeline: has steps and a program")
	case c.Protocol != ProtocolPipeline:
		return nil
	}
	if err := template.CheckSteps(c.Pipeline); err != nil {
		return err
	}
	if len(c.Args) > 0 || c.Instances.Min > 0 {
		return errors.New("pipeline: has a program and steps")
	}
	return nil
}
