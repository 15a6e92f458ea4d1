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
	f.StringVar(&cfg.State, "state", DefaultState, "state `directory`: local registry, tenants' files, logs")
	f.StringVar(&cfg.DockerSocket, "docker-socket", "", "`path` of the socket for Docker's clients, none for none (default docker.sock beside the control socket)")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8080", "HTTP gateway `address`")
	f.StringVar(&cfg.Group, "group", "fre", "group that may use the control socket, if it exists")
	f.StringVar(&cfg.ConfigFile, "config", "", "configuration `file`")
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long a graceful stop waits for events in flight")
	f.IntVar(&cfg.Pool, "pool", 64, "cgroups, network namespaces and bare shells kept ready without any demand, if memory and process ids allow")
	f.IntVar(&cfg.Forks, "forks", 25, "`percent` of the host's memory that fork servers may have together; 0 for none")
	f.IntVar(&cfg.Parked, "shells", 1024, "sandboxes parked ahead at most, after demand for them and if memory and process ids allow; 0: every start is made from nothing")
	f.Int64Var(&cfg.MaxBody, "max-body", gateway.DefaultMaxBody, "largest request body in `bytes`")
	f.IntVar(&cfg.MaxConnections, "max-connections", 10_000, "connections of clients at most, of the gateway and of each API that listens on an address")
	f.IntVar(&cfg.MaxPerClient, "max-connections-per-client", 0, "of one address, or of IPv6 one /64; trusted proxies have no such bound (default half of --max-connections)")
	f.StringSliceVar(&cfg.TrustedProxies, "trusted-proxies", nil, "`ranges` of addresses whose X-Forwarded-* and Forwarded headers functions are told")
	f.BoolVar(&cfg.Compress, "compress", true, "compress answers where clients ask for it and it is worth it")
	f.StringVar(&cfg.AccessLog, "access-log", "", "`file` for a line of JSON about each request, - for standard output")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the gateway's certificate and those that lead to its authority, PEM; read anew when it changes")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key, PEM")
	f.StringVar(&cfg.APIListen, "api-listen", "", "`address` of the control API for other hosts, by tokens (fre token); beyond loopback with TLS only")
}

// Flags adds the flags of a registry that runs without an engine to f and sets their defaults in c.
func (c *Registry) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.Dir, "dir", "", "`directory` that holds the registry; made if it is missing")
	f.StringVar(&c.Listen, "listen", defaultRegistryListen, "`address`: HOST:PORT, or unix:PATH")
	f.StringVar(&c.Cert, "tls-cert", "", "`file` with the certificate and those that lead to its authority, PEM")
	f.StringVar(&c.Key, "tls-key", "", "`file` with the certificate's key, PEM")
	f.StringVar(&c.Users, "users", "", "`file` of who may pull and push; both files are read again when they change")
	f.BoolVar(&c.ReadOnly, "read-only", false, "refuse every change")
	f.BoolVar(&c.Insecure, "insecure", false, "listen where others reach it without TLS and users")
	f.DurationVar(&c.Interval, "gc-interval", defaultRegistryInterval, "time between two collections; 0 for none")
	f.DurationVar(&c.Grace, "grace", DefaultGrace, "how long what nothing refers to is kept, unfinished uploads too")
	f.BoolVar(&c.Untagged, "gc-untagged", false, "collect manifests that have lost their last tag as well")
}
