package daemon

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/fre-engine/fre/gateway"
)

// DefaultState is the state directory without --state.
const DefaultState = "/var/lib/fre"

// Flags adds the daemon's flags to f and sets their defaults in cfg.
func (cfg *Config) Flags(f *pflag.FlagSet) {
	f.StringVar(&cfg.State, "state", DefaultState, "state `directory`: store, tenants' files, logs")
	f.StringVar(&cfg.DockerSocket, "docker-socket", "", "`path` of the socket for Docker's clients; none: no socket (default docker.sock beside the control socket)")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8080", "`address` of the HTTP gateway")
	f.StringVar(&cfg.Group, "group", "fre", "`group` with access to the control socket, if the group exists")
	f.StringVar(&cfg.ConfigFile, "config", "", "configuration `file`")
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long a graceful stop waits for running events")
	f.IntVar(&cfg.Pool, "pool", 64, "number of cgroups, network namespaces and bare parked sandboxes kept ready without demand, if memory and process ids allow")
	f.IntVar(&cfg.Forks, "forks", 25, "memory limit of all fork servers together, in `percent` of the host's memory; 0: no fork servers")
	f.IntVar(&cfg.Parked, "parked-sandboxes", 1024, "maximum number of sandboxes parked ahead after demand, if memory and process ids allow; 0: start every sandbox from nothing")
	f.Int64Var(&cfg.MaxBody, "max-body", gateway.DefaultMaxBody, "largest request body in `bytes`")
	f.IntVar(&cfg.MaxConnections, "max-connections", 10_000, "maximum number of client connections, of the gateway and of each API with an address of its own")
	f.IntVar(&cfg.MaxPerClient, "max-connections-per-client", 0, "maximum number of connections from one address, or from one /64 of IPv6; no limit for trusted proxies (default half of --max-connections)")
	f.StringSliceVar(&cfg.TrustedProxies, "trusted-proxies", nil, "address `ranges` of proxies whose X-Forwarded-* and Forwarded headers reach functions")
	f.BoolVar(&cfg.Compress, "compress", true, "compress answers with text for clients that accept compression (docs/gateway.md)")
	f.StringVar(&cfg.AccessLog, "access-log", "", "`file` for one line of JSON for each request; - for standard output")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the gateway's certificate and its chain in PEM; read again after a change")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key in PEM")
	f.StringVar(&cfg.APIListen, "api-listen", "", "`address` of the control API for other hosts, with tokens (fre token); beyond loopback only with TLS")
	cfg.renamedFlag(f, "shells", "parked-sandboxes")
}

// renamedFlag adds the old name of a flag to f. The old name works like the new name; help leaves
// the old name out.
func (cfg *Config) renamedFlag(f *pflag.FlagSet, old, name string) {
	f.Var(renamedValue{f.Lookup(name).Value, func() { cfg.renamed = append(cfg.renamed, renamed{"--" + old, "--" + name}) }}, old, "renamed to --"+name)
	f.Lookup(old).Hidden = true
}

// renamedValue is the value of a flag under its old name. used is called when the flag is set.
type renamedValue struct {
	pflag.Value
	used func()
}

// Set sets the flag.
func (v renamedValue) Set(s string) error {
	v.used()
	return v.Value.Set(s)
}

// Flags adds the flags of a registry that runs without an engine to f and sets their defaults in c.
func (c *Registry) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.Dir, "dir", "", "`directory` of the registry; created if missing")
	f.StringVar(&c.Listen, "listen", defaultRegistryListen, "`address`: HOST:PORT, or unix:PATH")
	f.StringVar(&c.Cert, "tls-cert", "", "`file` with the certificate and its chain in PEM; read again after a change")
	f.StringVar(&c.Key, "tls-key", "", "`file` with the certificate's key in PEM")
	f.StringVar(&c.Users, "users", "", "`file` of users who may pull and push; read again after a change")
	f.BoolVar(&c.ReadOnly, "read-only", false, "refuse every change")
	f.BoolVar(&c.Insecure, "insecure", false, "allow other hosts to connect without TLS and users")
	f.DurationVar(&c.Interval, "gc-interval", defaultRegistryInterval, "time between two collections; 0: never collect")
	f.DurationVar(&c.Grace, "grace", DefaultGrace, "how long to keep unreferenced content and unfinished uploads")
	f.BoolVar(&c.Untagged, "gc-untagged", false, "also remove manifests without a tag")
}
