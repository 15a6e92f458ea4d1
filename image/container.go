package image

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/fre-engine/fre/store"
)

// FunctionID is the user and the group id that functions run as, inside.
const FunctionID = 1000

// Container is what an ordinary image says about itself (OCI image-spec,
// config.md), as far as running and listing it needs: its environment stands in
// Config.Env, entry point and command together in Config.Args. The whole
// configuration, with the image's history, is kept beside its layers (package
// image/oci).
type Container struct {
	ID       store.Digest `json:"id"`              // digest of the configuration: the image's id at other engines
	Chain    store.Digest `json:"chain,omitempty"` // chain id of its layers, computed once here
	Created  time.Time    `json:"created,omitzero"`
	Author   string       `json:"author,omitempty"`
	Platform string       `json:"platform"` // "linux/amd64", with a third part for the variant

	User         string            `json:"user,omitempty"` // name or id, with ":" and a group or not; "" is root
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	WorkingDir   string            `json:"working_dir,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	ExposedPorts []string          `json:"exposed_ports,omitempty"` // "80/tcp", sorted
	Volumes      []string          `json:"volumes,omitempty"`       // paths, sorted
	StopSignal   string            `json:"stop_signal,omitempty"`   // "SIGTERM" or a number
	Shell        []string          `json:"shell,omitempty"`
	OnBuild      []string          `json:"on_build,omitempty"`
	Healthcheck  json.RawMessage   `json:"healthcheck,omitempty"` // as it came; nothing runs it
}

// AsContainer says how the image is run as an ordinary one: as it says itself, or,
// where FRE built it, as a function or a base is.
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
