package image

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Config is how to run an image: all data of the template that matter after the build, as JSON in
// store.Manifest.Config.
type Config struct {
	Base      string             `json:"base"`
	Runtime   string             `json:"runtime,omitempty"`  // "" in images of no function
	Contract  template.Contract  `json:"contract,omitempty"` // "" for fre
	Handler   string             `json:"handler,omitempty"`
	Args      []string           `json:"args"`          // of the first process
	Env       []string           `json:"env,omitempty"` // KEY=value, the runtime's, then the template's
	Protocol  Protocol           `json:"protocol"`
	Tenant    string             `json:"tenant"`
	Instances template.Instances `json:"instances"`
	Resources template.Resources `json:"resources"`
	Network   template.Network   `json:"network"`
	Forks     bool               `json:"forks,omitempty"` // the bootstrap may act as a fork server (see ForkServer)
	Labels    map[string]string  `json:"labels,omitempty"`
	Parked    *ParkedInterpreter `json:"shell,omitempty"` // nil: the interpreter starts with the function; images keep the old name

	// Pipeline are the steps of a function of ProtocolPipeline, NAME or NAME@REVISION. Such a
	// function has no base, runtime, arguments or environment.
	Pipeline []string `json:"pipeline,omitempty"`

	Events   *template.Events   `json:"events,omitempty"` // nil: DefaultEvents
	Triggers []template.Trigger `json:"triggers,omitempty"`

	// Container is set in ordinary images, from a registry or an archive. Their Protocol is none.
	Container *Container `json:"container,omitempty"`

	// LeftOut is what slimming left out of the base environment: the image itself, or a function's
	// base. nil if FRE did not make the base.
	LeftOut *LeftOut `json:"left_out,omitempty"`

	// Keep are the template's path globs of files that are never left out.
	Keep []string `json:"keep,omitempty"`

	Secrets []string        `json:"secrets,omitempty"` // names; values are never in an image
	Access  template.Access `json:"access,omitempty"`
	CORS    *template.CORS  `json:"cors,omitempty"`

	// Packages are the Debian packages of a base environment: name → version.
	Packages map[string]string `json:"packages,omitempty"`

	// PackageHashes are the hashes of the packages' .deb files from the archive's signed index:
	// name → "sha256:…". Older images have none.
	PackageHashes map[string]string `json:"package_hashes,omitempty"`
}

// Labels of images that the builder makes for its own use.
const (
	LabelKind = "fre.kind" // KindBase, KindTools; absent for a function
	LabelSpec = "fre.spec" // hash of the image's specification
)

// Values of [LabelKind]. Lists hide tools.
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
	ProtocolNone    Protocol = "none"    // not a function, for example a base environment
)

// EventSettings returns the function's settings for events, or the defaults for older images.
func (c *Config) EventSettings() template.Events {
	if c.Events == nil {
		return template.DefaultEvents()
	}
	return *c.Events
}

// SecretNames returns the tenant's secrets that the function requires: those it reads, and those of
// its triggers.
func (c *Config) SecretNames() []string {
	names := slices.Clone(c.Secrets)
	for i := range c.Triggers {
		if name := c.Triggers[i].SecretName(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
