package image

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/fre-engine/fre/store"
)

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
