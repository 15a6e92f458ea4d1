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

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// Config is the daemon's configuration: flags, and the file of --config for settings that only
// an operator changes.
type Config struct {
	State, Socket, Listen, Group string
	DockerSocket                 string
	ConfigFile                   string
	Version                      api.Version // of the program
	Drain                        time.Duration
	Pool, Parked, Forks          int
	MaxBody                      int64
	TrustedProxies               []string // addresses and ranges
	Compress                     bool
	AccessLog                    string // file, "-" for stdout, "" for none
	TLSCert, TLSKey              string // files, "" for a gateway in the clear
	Packages                     runtimes.PackagesConfig
	Debian                       []debian.Source // nil: the host's
	Require                      []string        // ids of checks that must be OK
	Interpreters                 engine.InterpreterConfig
	Work                         live.WorkConfig
	AllowHostNetwork             bool
	LendConnections              []string
	InsecureRegistries           []string // hosts, with their port
	Signatures                   []signature.RuleConfig
	Registry                     *Registry // nil: no registry is served
	ImageLimits                  oci.Limits
	Egress                       egress.Config
	GC                           build.GCConfig
	BufferBytes, ConnectionBytes int64
	BufferLock, BufferHuge       bool
	MaxConnections, MaxPerClient int
	Admission                    admission.Config
	Concurrency, Revisions       int
	Queue                        admission.QueueConfig
	APIListen                    string // "": no remote control API
	Access                       Access
	ACME                         *ACME // nil: no ACME
	Events                       events.Config
	EventsOff                    bool
	Lambda                       *Lambda   // nil: AWS Lambda's API is not served
	OpenFaaS                     *OpenFaaS // nil: OpenFaaS's clients are not answered
	Cluster                      Cluster

	renamed []renamed // settings given under their old names
}

// renamed is a flag or a key of the configuration file with a new name.
type renamed struct{ old, name string }

// complete makes paths absolute and checks the flags that need no host.
func (cfg *Config) complete() error {
	switch {
	case cfg.DockerSocket == "none":
		cfg.DockerSocket = ""
	case cfg.DockerSocket == "" && hasDocker:
		cfg.DockerSocket = filepath.Join(filepath.Dir(cfg.Socket), "docker.sock")
	}
	if err := cfg.makeAbsolute(); err != nil {
		return err
	}
	if cfg.MaxConnections < 1 || cfg.MaxPerClient < 0 {
		return failure.Hint(errors.New("--max-connections and --max-connections-per-client: less than one connection"), "leave both out for 10,000 connections, half from a single address")
	}
	return leftOut(cfg.parts())
}

// makeAbsolute makes the given paths absolute.
func (cfg *Config) makeAbsolute() error {
	paths := []*string{&cfg.State, &cfg.Socket}
	for _, optional := range []*string{&cfg.TLSCert, &cfg.TLSKey, &cfg.DockerSocket} {
		if *optional != "" {
			paths = append(paths, optional)
		}
	}
	if cfg.AccessLog != "" && cfg.AccessLog != "-" {
		paths = append(paths, &cfg.AccessLog)
	}
	for _, p := range paths {
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}

// configFile is the configuration file.
type configFile struct {
	Require  []string        `yaml:"require"`
	Packages packagesConfig  `yaml:"packages"`
	Network  networkConfig   `yaml:"network"`
	Registry registryRules   `yaml:"registry"`
	Images   imagesConfig    `yaml:"images"`
	Work     workConfig      `yaml:"work"`
	GC       gcConfig        `yaml:"gc"`
	Events   eventsConfig    `yaml:"events"`
	Cluster  Cluster         `yaml:"cluster"`
	Buffers  buffersConfig   `yaml:"buffers"`
	Overload overloadConfig  `yaml:"overload"`
	Lambda   *Lambda         `yaml:"lambda"`
	OpenFaaS *openfaasConfig `yaml:"openfaas"`
	Access   accessConfig    `yaml:"access"`

	Revisions *int `yaml:"revisions"`

	ParkedInterpreters *interpretersConfig `yaml:"parked_interpreters"`
	Shells             *interpretersConfig `yaml:"shells"` // the old name of ParkedInterpreters

	TLS struct {
		ACME *ACME `yaml:"acme"`
	} `yaml:"tls"`
}

// ReadFile reads a configuration file (docs/configuration.md). An unknown key is an error.
func (cfg *Config) ReadFile(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var file configFile
	if err := yaml.UnmarshalWithOptions(src, &file, yaml.Strict()); err != nil {
		return fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if file.Shells != nil {
		if file.ParkedInterpreters != nil {
			return fmt.Errorf("%s: shells is the old name of parked_interpreters: remove shells", path)
		}
		file.ParkedInterpreters = file.Shells
		cfg.renamed = append(cfg.renamed, renamed{"shells", "parked_interpreters"})
	}
	for _, section := range []struct {
		key  string
		read func(*Config) error
	}{
		{"revisions: ", file.readRevisions},
		{"packages.", file.Packages.read},
		{"parked_interpreters.", file.ParkedInterpreters.read},
		{"registry.", file.Registry.read},
		{"images.", file.Images.read},
		{"work.", file.Work.read},
		{"network.", file.Network.read},
		{"buffers.", file.Buffers.read},
		{"overload.", file.Overload.read},
		{"gc.", file.GC.read},
		{"access.", file.Access.read},
		{"tls.acme.", file.TLS.ACME.read},
		{"lambda.", file.Lambda.read},
		{"events.", file.Events.read},
		{"cluster.", file.Cluster.read},
		{"openfaas.", file.OpenFaaS.read},
	} {
		if err := section.read(cfg); err != nil {
			return fmt.Errorf("%s: %s%w", path, section.key, err)
		}
	}
	cfg.Require = file.Require
	return nil
}

func (f *configFile) readRevisions(cfg *Config) error {
	n := f.Revisions
	if n == nil {
		return nil
	}
	if *n < 0 || *n > 1000 {
		return fmt.Errorf("%d is not from 0 to 1000", *n)
	}
	if cfg.Revisions = *n; *n == 0 {
		cfg.Revisions = -1
	}
	return nil
}

// packagesConfig is the configuration file's packages.
type packagesConfig struct {
	runtimes.PackagesConfig `yaml:",inline"`
	Debian                  []struct {
		URI        string   `yaml:"uri"`
		Suite      string   `yaml:"suite"`
		Components []string `yaml:"components"`
		Keyring    string   `yaml:"keyring"`
	} `yaml:"debian"`
}

func (p *packagesConfig) read(cfg *Config) error {
	cfg.Packages = p.PackagesConfig
	for i, d := range p.Debian {
		if d.URI == "" || d.Suite == "" || len(d.Components) == 0 || d.Keyring == "" {
			return fmt.Errorf("debian[%d]: uri, suite, components and keyring are all needed", i)
		}
		cfg.Debian = append(cfg.Debian, debian.Source{URI: d.URI, Suite: d.Suite, Components: d.Components, Keyrings: []string{d.Keyring}})
	}
	return nil
}

// registryRules is the configuration file's registry.
type registryRules struct {
	Insecure   []string               `yaml:"insecure"`
	Signatures []signature.RuleConfig `yaml:"signatures"`
	Serve      *registryServeConfig   `yaml:"serve"`
}

func (r *registryRules) read(cfg *Config) error {
	for i, host := range r.Insecure {
		if host == "" || strings.ContainsAny(host, "/ ") {
			return fmt.Errorf("insecure[%d]: %q is not a host, with a port or without", i, host)
		}
	}
	cfg.InsecureRegistries = r.Insecure
	cfg.Signatures = r.Signatures
	if err := r.Serve.read(cfg); err != nil {
		return fmt.Errorf("serve.%w", err)
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
func (c *imagesConfig) read(cfg *Config) error {
	l := &cfg.ImageLimits
	if c.MaxSize != "" {
		n, err := template.ParseBytes(c.MaxSize)
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
func (w *workConfig) read(cfg *Config) error {
	to := &cfg.Work
	limit := func(field, s string) (int64, error) {
		if s == "none" || s == "" {
			return 0, nil
		}
		n, err := template.ParseBytes(s)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", field, err)
		}
		if n < volume.MinBytes {
			return 0, fmt.Errorf("%s: %s is less than %d KiB: write none for no limit", field, s, volume.MinBytes>>10)
		}
		return n, nil
	}
	var err error
	if to.Limit, err = limit("limit", w.Limit); err != nil {
		return err
	}
	for name, s := range w.Tenants {
		if to.Tenants == nil {
			to.Tenants = make(map[string]int64)
		}
		if to.Tenants[name], err = limit("tenants."+name, s); err != nil {
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

// read copies the settings; missing fields keep their defaults.
func (n *networkConfig) read(cfg *Config) error {
	cfg.AllowHostNetwork, cfg.LendConnections = n.AllowHost, n.LendConnections
	for i, f := range cfg.LendConnections {
		if tenant, name, _ := strings.Cut(f, "/"); !template.ValidName(tenant) || !template.ValidName(name) {
			return fmt.Errorf("lend_connections[%d]: %q is not a function as TENANT/NAME, for example default/clock", i, f)
		}
	}
	return n.readEgress(&cfg.Egress)
}

func (n *networkConfig) readEgress(cfg *egress.Config) (err error) {
	if cfg.AllowPrivate, err = parseRanges("allow_private", n.AllowPrivate); err != nil {
		return err
	}
	if s := n.Egress.Subnet; s != "" {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() || !p.Addr().Is4() || p.Bits() < egress.WidestSubnet || p.Bits() > egress.NarrowestSubnet {
			return fmt.Errorf("egress.subnet: %q is not an IPv4 range of /%d to /%d", s, egress.WidestSubnet, egress.NarrowestSubnet)
		}
		cfg.Subnet = p
	}
	for i, s := range n.Egress.Resolvers {
		a, err := parseResolver(s)
		if err != nil {
			return fmt.Errorf("egress.resolvers[%d]: %q is not an address, alone or with a port", i, s)
		}
		cfg.Resolvers = append(cfg.Resolvers, a)
	}
	return nil
}

// parseRanges parses the ranges of addresses of a field.
func parseRanges(field string, list []string) (ranges []netip.Prefix, err error) {
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s[%d]: %q is not a range, for example 10.1.0.0/16", field, i, s)
		}
		ranges = append(ranges, p)
	}
	return ranges, nil
}

// parseResolver parses an address, alone or with a port.
func parseResolver(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a, nil
	}
	addr, err := netip.ParseAddr(s)
	return netip.AddrPortFrom(addr, 53), err
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
		n, err := template.ParseBytes(s)
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
			return fmt.Errorf("%s: %q is not a duration, for example 200ms", field, s)
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
func (g *gcConfig) read(cfg *Config) error {
	to := &cfg.GC
	var err error
	if g.Interval != "" {
		if to.Interval, err = time.ParseDuration(g.Interval); err != nil || to.Interval < 0 {
			return fmt.Errorf("interval: %q is not a duration, for example 6h; 0h for never", g.Interval)
		}
		if to.Interval == 0 {
			to.Interval = -1 // engine.Config's value for never
		}
	}
	if g.Unused != "" {
		if to.Policy.Unused, err = time.ParseDuration(g.Unused); err != nil || to.Policy.Unused <= 0 {
			return fmt.Errorf("unused: %q is not a duration, for example 720h", g.Unused)
		}
	}
	if g.MaxSize != "" {
		if to.Policy.MaxBytes, err = template.ParseBytes(g.MaxSize); err != nil || to.Policy.MaxBytes < 1 {
			return fmt.Errorf("max_size: %q is not a size, for example 50GiB", g.MaxSize)
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
	to.Policy.Nameless, to.Policy.PerName, to.Policy.Keep = g.Nameless, g.KeepNewest, g.Keep
	return nil
}

// interpretersConfig is the configuration file's parked_interpreters.
type interpretersConfig struct {
	Ready  *int   `yaml:"ready"`
	Max    *int   `yaml:"max"`
	Memory string `yaml:"memory"`
}

// read copies the settings of parked interpreters; missing fields keep their defaults.
func (c *interpretersConfig) read(cfg *Config) error {
	if c == nil {
		return nil
	}
	to, ready, most := &cfg.Interpreters, c.Ready, c.Max
	if most != nil {
		if *most < 0 {
			return fmt.Errorf("max: %d is negative: give 0 to park none", *most)
		}
		to.Max, to.Off = *most, *most == 0
	}
	if ready != nil {
		if *ready < 1 || most != nil && *ready > *most && !to.Off {
			return fmt.Errorf("ready: %d is not between 1 and max; max: 0 parks none", *ready)
		}
		to.Ready = *ready
	}
	if c.Memory == "" {
		return nil
	}
	var err error
	if to.MemoryBytes, err = template.ParseBytes(c.Memory); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if to.MemoryBytes == 0 {
		return errors.New("memory: 0 leaves room for none: give max: 0 to park none")
	}
	return nil
}

// ParseBytes parses a size in the format of templates.
func ParseBytes(s string) (int64, error) { return template.ParseBytes(s) }

// ParseCPU parses a CPU limit in the format of templates and returns thousandths of a CPU.
func ParseCPU(s string) (int64, error) { return template.ParseCPU(s) }
