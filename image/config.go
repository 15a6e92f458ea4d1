package image

import (
	"encoding/json"
	"fmt"

	"github.com/fre-engine/fre/store"
)

// Config is what an image's manifest says about running it: everything of the
// template that matters after the build, as JSON in store.Manifest.Config.
type Config struct {
	Base      string            `json:"base"`
	Runtime   string            `json:"runtime,omitempty"`  // "" in images that are no function's
	Contract  Contract          `json:"contract,omitempty"` // "" for fre
	Handler   string            `json:"handler,omitempty"`
	Args      []string          `json:"args"`          // of the first process
	Env       []string          `json:"env,omitempty"` // KEY=value, runtime's then template's
	Protocol  Protocol          `json:"protocol"`
	Tenant    string            `json:"tenant"`
	Instances Instances         `json:"instances"`
	Resources Resources         `json:"resources"`
	Network   Network           `json:"network"`
	Forks     bool              `json:"forks,omitempty"` // the bootstrap can be a fork server (see ForkServer), and may
	Labels    map[string]string `json:"labels,omitempty"`
	Shell     *Shell            `json:"shell,omitempty"` // nil: the interpreter starts with the function

	// Pipeline are the steps of a function of ProtocolPipeline, NAME or NAME@REVISION; it
	// has no base, runtime, arguments or environment.
	Pipeline []string `json:"pipeline,omitempty"`

	Events   *Events   `json:"events,omitempty"` // nil: DefaultEvents
	Triggers []Trigger `json:"triggers,omitempty"`

	// Container is set in ordinary images, which came from a registry or an
	// archive: Protocol is none.
	Container *Container `json:"container,omitempty"`

	// LeftOut is what slimming left out of a base environment, the image's own or
	// that of a function. nil where FRE did not make the base.
	LeftOut *LeftOut `json:"left_out,omitempty"`

	// Keep are the template's path globs of what stays whatever is left out.
	Keep []string `json:"keep,omitempty"`

	Secrets []string `json:"secrets,omitempty"` // names; their values are never in an image
	Access  Access   `json:"access,omitempty"`
	CORS    *CORS    `json:"cors,omitempty"`

	// Packages are the Debian packages of a base environment: name → version.
	Packages map[string]string `json:"packages,omitempty"`

	// PackageHashes are those of their .deb files, as the archive's signed index has
	// them: name → "sha256:…". Images from before there were any have none.
	PackageHashes map[string]string `json:"package_hashes,omitempty"`
}

// The labels of images the builder makes for itself.
const (
	LabelKind = "fre.kind" // KindBase, KindTools; none for a function
	LabelSpec = "fre.spec" // hash of what the image was made from
)

// The values of [LabelKind]. Lists hide tools.
const (
	KindBase  = "base"
	KindTools = "tools"
)

// ConfigOf decodes an image's configuration.
func ConfigOf(img *store.Image) (Config, error) {
	var c Config
	if err := json.Unmarshal(img.Config, &c); err != nil {
		return Config{}, fmt.Errorf("configuration of image %s: %w", img.Digest, err)
	}
	return c, nil
}

// Protocol says how events reach the first process.
type Protocol string

// The protocols.
const (
	ProtocolChannel Protocol = "channel" // frames on fd 3
	ProtocolStdio   Protocol = "stdio"   // one event: body on stdin, answer on stdout, exit status
	ProtocolNone    Protocol = "none"    // a base environment: not a function
)
