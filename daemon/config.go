package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/volume"
)

// ReadFile reads a configuration file (docs/configuration.md). An unknown key is an error.
func (cfg *Config) ReadFile(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var file struct {
		Require  []string `yaml:"require"`
		Packages struct {
			image.SettingsOverride `yaml:",inline"`
			Debian                 []struct {
				URI        string   `yaml:"uri"`
				Suite      string   `yaml:"suite"`
				Components []string `yaml:"components"`
				Keyring    string   `yaml:"keyring"`
			} `yaml:"debian"`
		} `yaml:"packages"`
		Shells struct {
			Ready  *int   `yaml:"ready"`
			Max    *int   `yaml:"max"`
			Memory string `yaml:"memory"`
		} `yaml:"shells"`
		Network  networkConfig `yaml:"network"`
		Registry struct {
			Insecure   []string               `yaml:"insecure"`
			Signatures []signature.RuleConfig `yaml:"signatures"`
			Serve      *registryServeConfig   `yaml:"serve"`
		} `yaml:"registry"`
		Images imagesConfig `yaml:"images"`
		Work   workConfig   `yaml:"work"`
		GC     gcConfig     `yaml:"gc"`
		Events eventsConfig `yaml:"events"`

		Cluster Cluster `yaml:"cluster"`

		Revisions *int `yaml:"revisions"`

		Buffers  buffersConfig  `yaml:"buffers"`
		Overload overloadConfig `yaml:"overload"`

		Lambda   *Lambda         `yaml:"lambda"`
		OpenFaaS *openfaasConfig `yaml:"openfaas"`

		Access accessConfig `yaml:"access"`
		TLS    struct {
			ACME *ACME `yaml:"acme"`
		} `yaml:"tls"`
	}
	if err := yaml.UnmarshalWithOptions(src, &file, yaml.Strict()); err != nil {
		return fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	cfg.Packages = file.Packages.SettingsOverride
	cfg.Require = file.Require
	if n := file.Revisions; n != nil {
		if *n < 0 || *n > 1000 {
			return fmt.Errorf("%s: revisions: %d is not from 0 to 1000", path, *n)
		}
		if cfg.Revisions = *n; *n == 0 {
			cfg.Revisions = -1
		}
	}
	for i, d := range file.Packages.Debian {
		if d.URI == "" || d.Suite == "" || len(d.Components) == 0 || d.Keyring == "" {
			return fmt.Errorf("%s: packages.debian[%d]: uri, suite, components and keyring are all needed", path, i)
		}
		cfg.Debian = append(cfg.Debian, debian.Source{URI: d.URI, Suite: d.Suite, Components: d.Components, Keyrings: []string{d.Keyring}})
	}
	if err := readShells(&cfg.Shells, file.Shells.Ready, file.Shells.Max, file.Shells.Memory); err != nil {
		return fmt.Errorf("%s: shells.%w", path, err)
	}
	for i, host := range file.Registry.Insecure {
		if host == "" || strings.ContainsAny(host, "/ ") {
			return fmt.Errorf("%s: registry.insecure[%d]: %q is not a host, with a port or without", path, i, host)
		}
	}
	cfg.InsecureRegistries = file.Registry.Insecure
	cfg.Signatures = file.Registry.Signatures
	if cfg.Registry, err = file.Registry.Serve.read(); err != nil {
		return fmt.Errorf("%s: registry.serve.%w", path, err)
	}
	if err := file.Images.read(&cfg.ImageLimits); err != nil {
		return fmt.Errorf("%s: images.%w", path, err)
	}
	if err := file.Work.read(&cfg.Work); err != nil {
		return fmt.Errorf("%s: work.%w", path, err)
	}
	cfg.AllowHostNetwork, cfg.LendConnections = file.Network.AllowHost, file.Network.LendConnections
	for i, f := range cfg.LendConnections {
		if tenant, name, _ := strings.Cut(f, "/"); !image.ValidName(tenant) || !image.ValidName(name) {
			return fmt.Errorf("%s: network.lend_connections[%d]: %q is no function as TENANT/NAME, such as default/clock", path, i, f)
		}
	}
	if err := file.Network.read(&cfg.Egress); err != nil {
		return fmt.Errorf("%s: network.%w", path, err)
	}
	if err := file.Buffers.read(cfg); err != nil {
		return fmt.Errorf("%s: buffers.%w", path, err)
	}
	if err := file.Overload.read(cfg); err != nil {
		return fmt.Errorf("%s: overload.%w", path, err)
	}
	if err := file.GC.read(&cfg.GC); err != nil {
		return fmt.Errorf("%s: gc.%w", path, err)
	}
	if err := file.Access.read(&cfg.Access); err != nil {
		return fmt.Errorf("%s: access.%w", path, err)
	}
	if err := file.TLS.ACME.check(); err != nil {
		return fmt.Errorf("%s: tls.acme.%w", path, err)
	}
	cfg.ACME = file.TLS.ACME
	if err := file.Lambda.check(); err != nil {
		return fmt.Errorf("%s: lambda.%w", path, err)
	}
	cfg.Lambda = file.Lambda
	if err := file.Events.read(cfg); err != nil {
		return fmt.Errorf("%s: events.%w", path, err)
	}
	if err := file.Cluster.check(cfg); err != nil {
		return fmt.Errorf("%s: cluster.%w", path, err)
	}
	cfg.Cluster = file.Cluster
	cfg.Access.records.SharedKeyFile = file.Cluster.KeyFile
	if cfg.OpenFaaS, err = file.OpenFaaS.read(); err != nil {
		return fmt.Errorf("%s: openfaas.%w", path, err)
	}
	return nil
}

// imagesConfig bounds images that come from elsewhere.
type imagesConfig struct {
	MaxSize  string `yaml:"max_size"`
	MaxFiles int64  `yaml:"max_files"`
	MaxRatio int64  `yaml:"max_ratio"`
}

// read copies the limits; missing fields keep their defaults.
func (c *imagesConfig) read(l *oci.Limits) error {
	if c.MaxSize != "" {
		n, err := image.ParseBytes(c.MaxSize)
		if err != nil {
			return fmt.Errorf("max_size: %w", err)
		}
		l.Bytes = n
	}
	if c.MaxFiles < 0 {
		return fmt.Errorf("max_files: %d is negative", c.MaxFiles)
	}
	if c.MaxRatio < 0 {
		return fmt.Errorf("max_ratio: %d is negative", c.MaxRatio)
	}
	l.Entries, l.Ratio = c.MaxFiles, c.MaxRatio
	return nil
}

// workConfig is the configuration file's work.
type workConfig struct {
	Limit   string            `yaml:"limit"`
	Tenants map[string]string `yaml:"tenants"`
}

// read copies the limits.
func (w *workConfig) read(cfg *engine.WorkConfig) error {
	limit := func(field, s string) (int64, error) {
		if s == "none" || s == "" {
			return 0, nil
		}
		n, err := image.ParseBytes(s)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", field, err)
		}
		if n < volume.MinBytes {
			return 0, fmt.Errorf("%s: %s is less than %d KiB: write none for no limit", field, s, volume.MinBytes>>10)
		}
		return n, nil
	}
	var err error
	if cfg.Limit, err = limit("limit", w.Limit); err != nil {
		return err
	}
	for name, s := range w.Tenants {
		if cfg.Tenants == nil {
			cfg.Tenants = make(map[string]int64)
		}
		if cfg.Tenants[name], err = limit("tenants."+name, s); err != nil {
			return err
		}
	}
	return nil
}

// networkConfig is the configuration file's network.
type networkConfig struct {
	AllowHost    bool     `yaml:"allow_host"`
	AllowPrivate []string `yaml:"allow_private"`

	LendConnections []string `yaml:"lend_connections"`

	Egress struct {
		Subnet    string   `yaml:"subnet"`
		Resolvers []string `yaml:"resolvers"`
	} `yaml:"egress"`
}

// read copies the settings of egress; missing fields keep their defaults.
func (n *networkConfig) read(cfg *egress.Config) error {
	for i, s := range n.AllowPrivate {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() {
			return fmt.Errorf("allow_private[%d]: %q is not a range such as 10.1.0.0/16", i, s)
		}
		cfg.AllowPrivate = append(cfg.AllowPrivate, p)
	}
	if s := n.Egress.Subnet; s != "" {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() || !p.Addr().Is4() || p.Bits() < egress.WidestSubnet || p.Bits() > egress.NarrowestSubnet {
			return fmt.Errorf("egress.subnet: %q is not an IPv4 range of /%d to /%d", s, egress.WidestSubnet, egress.NarrowestSubnet)
		}
		cfg.Subnet = p
	}
	for i, s := range n.Egress.Resolvers {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			var addr netip.Addr
			addr, err = netip.ParseAddr(s)
			a = netip.AddrPortFrom(addr, 53)
		}
		if err != nil {
			return fmt.Errorf("egress.resolvers[%d]: %q is not an address, alone or with a port", i, s)
		}
		cfg.Resolvers = append(cfg.Resolvers, a)
	}
	return nil
}

// buffersConfig is the configuration file's buffers.
type buffersConfig struct {
	Memory      string `yaml:"memory"`
	Connections string `yaml:"connections"`
	Lock        bool   `yaml:"lock"`
	HugePages   bool   `yaml:"huge_pages"`
}

// read copies the sizes; missing fields keep their defaults.
func (b *buffersConfig) read(cfg *Config) error {
	size := func(field, s string, to *int64) error {
		if s == "" {
			return nil
		}
		n, err := image.ParseBytes(s)
		if err != nil || n < 8<<20 {
			return fmt.Errorf("%s: %q is no size of 8MiB or more", field, s)
		}
		*to = n
		return nil
	}
	cfg.BufferLock, cfg.BufferHuge = b.Lock, b.HugePages
	if err := size("memory", b.Memory, &cfg.BufferBytes); err != nil {
		return err
	}
	return size("connections", b.Connections, &cfg.ConnectionBytes)
}

// overloadConfig is the configuration file's overload.
type overloadConfig struct {
	MinFree  float64 `yaml:"min_free"` // percent
	SlowWait string  `yaml:"slow_wait"`
	Waits    int     `yaml:"waits"`
	Probe    string  `yaml:"probe"`
	Steps    int     `yaml:"steps"`

	Concurrency   *int   `yaml:"concurrency"`
	Queue         *int   `yaml:"queue"`
	QueueTarget   string `yaml:"queue_target"`
	QueueInterval string `yaml:"queue_interval"`
}

// read copies the thresholds; missing fields keep their defaults.
func (o *overloadConfig) read(cfg *Config) error {
	duration := func(field, s string, to *time.Duration) error {
		if s == "" {
			return nil
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Millisecond {
			return fmt.Errorf("%s: %q is no duration such as 200ms", field, s)
		}
		*to = d
		return nil
	}
	number := func(field string, n, to *int) error {
		if n == nil {
			return nil
		}
		if *n < 1 {
			return fmt.Errorf("%s: %d is less than 1", field, *n)
		}
		*to = *n
		return nil
	}
	a, q := &cfg.Admission, &cfg.Queue
	for _, err := range []error{
		duration("slow_wait", o.SlowWait, &a.SlowWait), duration("probe", o.Probe, &a.Every),
		number("concurrency", o.Concurrency, &cfg.Concurrency), number("queue", o.Queue, &q.Length),
		duration("queue_target", o.QueueTarget, &q.Target), duration("queue_interval", o.QueueInterval, &q.Interval),
	} {
		if err != nil {
			return err
		}
	}
	a.MinFree, a.Waits, a.Steps = o.MinFree/100, o.Waits, o.Steps
	if err := a.Check(); err != nil {
		return err
	}
	return q.Check()
}

// gcConfig is the configuration file's gc.
type gcConfig struct {
	Interval   string   `yaml:"interval"`
	Nameless   bool     `yaml:"nameless"`
	Unused     string   `yaml:"unused"`
	KeepNewest int      `yaml:"keep_newest"`
	MaxSize    string   `yaml:"max_size"`
	Keep       []string `yaml:"keep"`
}

// read copies the rules of automatic collection; missing fields keep their defaults.
func (g *gcConfig) read(cfg *engine.GCConfig) error {
	var err error
	if g.Interval != "" {
		if cfg.Interval, err = time.ParseDuration(g.Interval); err != nil || cfg.Interval < 0 {
			return fmt.Errorf("interval: %q is no duration such as 6h; 0h for never", g.Interval)
		}
		if cfg.Interval == 0 {
			cfg.Interval = -1 // engine.Config's value for never
		}
	}
	if g.Unused != "" {
		if cfg.Policy.Unused, err = time.ParseDuration(g.Unused); err != nil || cfg.Policy.Unused <= 0 {
			return fmt.Errorf("unused: %q is no duration such as 720h", g.Unused)
		}
	}
	if g.MaxSize != "" {
		if cfg.Policy.MaxBytes, err = image.ParseBytes(g.MaxSize); err != nil || cfg.Policy.MaxBytes < 1 {
			return fmt.Errorf("max_size: %q is no size such as 50GiB", g.MaxSize)
		}
	}
	if g.KeepNewest < 0 {
		return fmt.Errorf("keep_newest: %d is negative", g.KeepNewest)
	}
	for i, pattern := range g.Keep {
		if _, err := filepath.Match(pattern, ""); err != nil {
			return fmt.Errorf("keep[%d]: %q: %w", i, pattern, err)
		}
	}
	cfg.Policy.Nameless, cfg.Policy.PerName, cfg.Policy.Keep = g.Nameless, g.KeepNewest, g.Keep
	return nil
}

// readShells copies the settings of parked interpreters; nil and "" keep the defaults.
func readShells(cfg *engine.ShellConfig, ready, most *int, memory string) error {
	if most != nil {
		if *most < 0 {
			return fmt.Errorf("max: %d is negative: give 0 to park none", *most)
		}
		cfg.Max, cfg.Off = *most, *most == 0
	}
	if ready != nil {
		if *ready < 1 || most != nil && *ready > *most && !cfg.Off {
			return fmt.Errorf("ready: %d is not between 1 and max; max: 0 parks none", *ready)
		}
		cfg.Ready = *ready
	}
	if memory == "" {
		return nil
	}
	var err error
	if cfg.MemoryBytes, err = image.ParseBytes(memory); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if cfg.MemoryBytes == 0 {
		return errors.New("memory: 0 leaves room for none: give max: 0 to park none")
	}
	return nil
}

// ParseBytes parses a size in the format of templates.
func ParseBytes(s string) (int64, error) { return image.ParseBytes(s) }

// ParseCPU parses a CPU limit in the format of templates and returns thousandths of a CPU.
func ParseCPU(s string) (int64, error) { return image.ParseCPU(s) }
