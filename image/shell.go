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
)

// Shell says how a function's interpreter is started before anyone knows whose it
// will be (a runtime shell): with the base environment and the bootstrap for its
// root, and Mounts empty until the function's are attached there. Functions whose
// Shell and whose root are the same share them.
type Shell struct {
	Args   []string `json:"args"`          // the interpreter and the bootstrap, without a handler: it parks
	Env    []string `json:"env,omitempty"` // KEY=value
	Mounts []string `json:"mounts"`        // absolute directories of what comes with the function
}

// readByLibc are the beginnings of names that libc, the dynamic linker and
// OpenSSL may have read before a parked interpreter learns the function's
// environment.
var readByLibc = []string{"GCONV_PATH", "GLIBC_TUNABLES", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_", "OPENSSL_"}

// Fits says whether env, a function's whole environment, can take the place of
// s.Env in an interpreter that runs already: variables that libc or the
// interpreter reads at its start must be the same in both. reads are the
// beginnings of the latter's names, later the exceptions, whole names.
func (s *Shell) Fits(env, reads, later []string) bool {
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

// holds says whether all that is the function's own lies below s.Mounts.
func (s *Shell) holds(parts []store.Part) bool {
	return !slices.ContainsFunc(parts, func(p store.Part) bool {
		return !shared(p) && !slices.ContainsFunc(s.Mounts, func(m string) bool {
			return strings.HasPrefix("/"+p.Prefix+"/", m+"/")
		})
	})
}

// shared says whether a part is of the system that a function stands on, and so may
// be there before anyone knows whose the interpreter will be.
func shared(p store.Part) bool {
	return p.Kind == "base" || p.Kind == "bootstrap" || p.Kind == debKind
}

// ShellKey names what functions must have in common to share runtime shells; ""
// for one that has none.
func ShellKey(img *store.Image, config *Config) string {
	if config.Shell == nil {
		return ""
	}
	text, err := json.Marshal([]any{sharedParts(img), config.Shell})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func sharedParts(img *store.Image) []store.Part {
	return slices.DeleteFunc(slices.Clone(img.Parts), func(p store.Part) bool { return !shared(p) })
}

// IsShellRoot says whether img is one that ShellRoot made.
func IsShellRoot(img *store.Image) bool { return strings.HasPrefix(img.Name, shellPrefix) }

const shellPrefix = toolsPrefix + "shell-"

// ShellRoot finds or makes the image that a function's runtime shells have for
// their root: what the function's image shares with others, and the mount points
// of config.Shell. Lists hide it, as they do tools.
func (b *Builder) ShellRoot(ctx context.Context, img *store.Image, config *Config) (*store.Image, error) {
	root, err := b.shellRoot(ctx, img, config)
	if err != nil {
		return nil, fmt.Errorf("root of runtime shells for %s: %w", config.Base, err)
	}
	return root, nil
}

func (b *Builder) shellRoot(ctx context.Context, img *store.Image, config *Config) (*store.Image, error) {
	name, key := shellPrefix+baseName(config.Base), ShellKey(img, config)
	if root := b.find(name, key); root != nil {
		return root, nil
	}
	defer b.Store.Hold()()
	w, err := b.Store.Create()
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	for _, m := range config.Shell.Mounts {
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
		Base: config.Base, Args: config.Shell.Args, Env: config.Shell.Env, Protocol: ProtocolNone,
		Labels: map[string]string{LabelKind: KindTools, LabelSpec: key},
	})
}
