package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// readByLibc are prefixes of variables that libc, the dynamic linker and OpenSSL may have read
// before a parked interpreter gets the function's environment.
var readByLibc = []string{"GCONV_PATH", "GLIBC_TUNABLES", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_", "OPENSSL_"}

// Fits reports whether env, a function's whole environment, can replace s.Env in a running
// interpreter: variables that libc or the interpreter reads at its start must be equal in both.
// reads are prefixes of names that the interpreter reads; later are exceptions, as whole names.
func (s *ParkedInterpreter) Fits(env, reads, later []string) bool {
	early := func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains(later, name) && slices.ContainsFunc(slices.Concat(readByLibc, reads), func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
	}
	missing := func(from, in []string) bool {
		return slices.ContainsFunc(from, func(v string) bool { return early(v) && !slices.Contains(in, v) })
	}
	return !missing(env, s.Env) && !missing(s.Env, env)
}

// holds reports whether all of the function's own files are below s.Mounts.
func (s *ParkedInterpreter) holds(parts []store.Part) bool {
	return !slices.ContainsFunc(parts, func(p store.Part) bool {
		return !shared(p) && !slices.ContainsFunc(s.Mounts, func(m string) bool {
			return strings.HasPrefix("/"+p.Prefix+"/", m+"/")
		})
	})
}

// ParkedKey identifies functions that can share parked interpreters; "" if the function uses none.
func ParkedKey(img *store.Image, config *Config) string {
	if config.Parked == nil {
		return ""
	}
	text, err := json.Marshal([]any{sharedParts(img), config.Parked})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// IsParkedRoot reports whether ParkedRoot made img.
func IsParkedRoot(img *store.Image) bool { return strings.HasPrefix(img.Name, parkedPrefix) }

// ParkedRoot finds or makes the image that is the root of a function's parked interpreters: the
// parts that the function's image shares, and the mount points in config.Parked. Lists hide the
// image, like tools.
func (b *Builder) ParkedRoot(ctx context.Context, img *store.Image, config *Config) (*store.Image, error) {
	root, err := b.parkedRoot(ctx, img, config)
	if err != nil {
		return nil, fmt.Errorf("root of parked interpreters for %s: %w", config.Base, err)
	}
	return root, nil
}

func (b *Builder) parkedRoot(ctx context.Context, img *store.Image, config *Config) (*store.Image, error) {
	name, key := parkedPrefix+template.BaseName(config.Base), ParkedKey(img, config)
	if root := b.find(name, key); root != nil {
		return root, nil
	}
	defer b.Store.Hold()()
	w, err := b.Store.Create()
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	for _, m := range config.Parked.Mounts {
		if err := w.Directory(strings.TrimPrefix(path.Clean(m), "/"), 0o755, systemTime); err != nil {
			return nil, err
		}
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return nil, err
	}
	parts := append(sharedParts(img), store.Part{Kind: "mounts", Name: "of functions", Tree: tree})
	return b.put(ctx, name, key[:12], parts, Config{
		Base: config.Base, Args: config.Parked.Args, Env: config.Parked.Env, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindTools, LabelSpec: key},
	})
}
