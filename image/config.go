package image

// Config is what an image's manifest says about running it: everything of the
// template that matters after the build, as JSON in store.Manifest.Config.
type Config struct {
	Base      string            `json:"base"`
	Handler   string            `json:"handler,omitempty"`
	Args      []string          `json:"args"`          // of the first process
	Env       []string          `json:"env,omitempty"` // KEY=value, runtime's then template's
	Protocol  Protocol          `json:"protocol"`
	Tenant    string            `json:"tenant"`
	Instances Instances         `json:"instances"`
	Resources Resources         `json:"resources"`
	Network   string            `json:"network"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Protocol says how events reach the first process.
type Protocol string

// The protocols.
const (
	ProtocolChannel Protocol = "channel" // frames on fd 3
	ProtocolStdio   Protocol = "stdio"   // one event: body on stdin, answer on stdout, exit status
	ProtocolNone    Protocol = "none"    // a base environment: not a function
)
