package image

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

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

// ParkedInterpreter says how to park an interpreter before its function is known. The root is the
// base environment with the bootstrap; Mounts are empty until the function's directories are
// attached there. Functions with equal ParkedInterpreter and equal root share parked interpreters.
type ParkedInterpreter struct {
	Args   []string `json:"args"`          // the interpreter and the bootstrap, without a handler
	Env    []string `json:"env,omitempty"` // KEY=value
	Mounts []string `json:"mounts"`        // absolute directories that come with the function
}

// FunctionID is the user id and group id of functions inside the sandbox.
const FunctionID = 1000

// Container is an ordinary image's configuration (OCI image-spec, config.md), as far as running and
// listing need it. The environment is in Config.Env, entry point and command together are in
// Config.Args. Package image/oci keeps the whole configuration, with the image's history, beside
// the layers.
type Container struct {
	ID       store.Digest `json:"id"`              // digest of the configuration: the image's id in other engines
	Chain    store.Digest `json:"chain,omitempty"` // chain id of the layers, computed once
	Created  time.Time    `json:"created,omitzero"`
	Author   string       `json:"author,omitempty"`
	Platform string       `json:"platform"` // "linux/amd64", with the variant as third part

	User         string            `json:"user,omitempty"` // name or id, optionally ":" and a group; "" is root
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	WorkingDir   string            `json:"working_dir,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	ExposedPorts []string          `json:"exposed_ports,omitempty"` // "80/tcp", sorted
	Volumes      []string          `json:"volumes,omitempty"`       // paths, sorted
	StopSignal   string            `json:"stop_signal,omitempty"`   // "SIGTERM" or a number
	Shell        []string          `json:"shell,omitempty"`
	OnBuild      []string          `json:"on_build,omitempty"`
	Healthcheck  json.RawMessage   `json:"healthcheck,omitempty"` // unchanged; FRE runs no health checks
}

// AsContainer returns how to run the image as a container: by its own configuration or, if FRE
// built the image, like a function or a base.
func (c *Config) AsContainer() Container {
	if c.Container != nil {
		return *c.Container
	}
	own := Container{Cmd: c.Args, WorkingDir: "/"}
	if c.Protocol != ProtocolNone {
		own.User, own.WorkingDir = fmt.Sprintf("%d:%d", FunctionID, FunctionID), "/function"
	}
	return own
}

// ProtocolPipeline marks functions without a program that call other functions in sequence
// (Config.Pipeline). Their image is one small file with the steps.
const ProtocolPipeline Protocol = "pipeline"

// ProtocolSnapshot marks images with a single part, snapshotPart: the contents of an agent's /work.
const ProtocolSnapshot Protocol = "snapshot"

// LeftOut is what slimming left out of a base environment, and so out of functions on the base.
type LeftOut struct {
	// Packages are dependencies that are needed only for an installation.
	Packages []string `json:"packages,omitempty"`
	// PackageBytes is the installed size of Packages, by the archive's index.
	PackageBytes int64          `json:"package_bytes,omitempty"`
	Files        []LeftOutFiles `json:"files,omitempty"`    // of the packages in the base
	Unopened     []LeftOutPart  `json:"unopened,omitempty"` // of a slimmed image ([Builder.Slim])

	// Apart are parts of the language in Debian packages that a template can add: name that a
	// program asks for → package.
	Apart map[string]string `json:"apart,omitempty"`
}

// LeftOutFiles are the files left out because of one pattern of [BaseSpec].
type LeftOutFiles struct {
	Pattern string `json:"pattern"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`

	// Names are the names that programs ask for: modules, programs, packages of classes.
	Names []string `json:"names,omitempty"`
}

// LeftOutPart is the part of a store.Part that slimming by trace removed.
type LeftOutPart struct {
	Part  string `json:"part"` // kind, name and version
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}
