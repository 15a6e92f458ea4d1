package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Agent makes the image of AI agents' sandboxes from another image, by adding the adapter, which
// runs the agents' commands. The cost is one directory of links. Lists hide the image; it is
// removed after long disuse and made again on demand. Its configuration has only the base and the
// environment of the other image; the command is [AgentCommand].
func (b *Builder) Agent(ctx context.Context, of *store.Image) (*store.Image, error) {
	defer b.Store.Hold()()
	cfg, err := ConfigOf(of)
	if err != nil {
		return nil, err
	}
	runtime, err := b.runtime("http", template.ContractHTTP)
	if err != nil {
		return nil, err
	}
	files := runtime.Bootstrap()
	if len(files) == 0 {
		return nil, errors.New("fre was built without the adapter: run make build")
	}
	part, err := b.bootstrap(ctx, nil, runtime, files)
	if err != nil {
		return nil, fmt.Errorf("agent's image of %s: %w", of.Digest, err)
	}
	parts := of.Parts
	if !slices.Contains(parts, part) {
		parts = append(slices.Clip(parts), part)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(string(of.Digest)+" "+string(part.Tree))))
	config, err := json.Marshal(Config{
		Base: cfg.Base, Args: AgentCommand(), Env: cfg.Env, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindTools, LabelSpec: hash},
	})
	if err != nil {
		return nil, err
	}
	return b.Store.PutImage(ctx, store.Manifest{Name: toolsPrefix + "agent", Version: hash[:16], Parts: parts, Config: config})
}

// AgentCommand returns the program of an image made by [Builder.Agent].
func AgentCommand() []string { return []string{"/opt/fre/http"} }

// AgentEnv returns the environment of the program; commands get it without the program's own
// variables.
func AgentEnv(img *store.Image) ([]string, error) {
	cfg, err := ConfigOf(img)
	if err != nil {
		return nil, err
	}
	env := withPath([]string{"PATH=/work/.local/bin:/usr/local/bin:/usr/bin:/bin"}, searchPath(cfg.Env))
	env = append(env, "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8")
	return append(under(cfg.Env, env), "FRE_CONTRACT=agent"), nil
}

const snapshotPart = "work"

// SnapshotManifest returns the manifest of an agent's /work, which counts among the tenant's
// images.
func SnapshotManifest(tenant string, tree store.Digest) (store.Manifest, error) {
	config, err := json.Marshal(Config{Protocol: ProtocolSnapshot, Tenant: tenant})
	if err != nil {
		return store.Manifest{}, err
	}
	version := string(tree)
	if len(version) > 19 {
		version = version[7:19] // twelve of the hexadecimal digits
	}
	return store.Manifest{
		Name: template.QualifiedName("snapshot", tenant), Version: version, Config: config,
		Parts: []store.Part{{Kind: snapshotPart, Name: "work", Tree: tree, Prefix: "work"}},
	}, nil
}

// IsSnapshot reports whether an image is a snapshot, and of which tenant.
func IsSnapshot(img *store.Image) (tenant string, ok bool) {
	cfg, err := ConfigOf(img)
	return cfg.Tenant, err == nil && cfg.Protocol == ProtocolSnapshot
}
