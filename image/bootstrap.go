package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/fre-engine/fre/store"
)

// bootstrap makes or finds the part below /opt/fre.
func (b *Builder) bootstrap(ctx context.Context, of *buildOf, runtime Runtime, files map[string][]byte) (store.Part, error) {
	names := slices.Sorted(maps.Keys(files))
	h := sha256.New()
	for _, name := range names {
		_, _ = fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	compiler, compiled := runtime.(Compiler)
	if compiled {
		_, _ = fmt.Fprintln(h, of.base.Digest)
	}
	hash := hex.EncodeToString(h.Sum(nil))
	key := "bootstrap:" + runtime.Name() + ":" + hash
	if part, ok := b.Store.Part(key); ok {
		return part, nil
	}
	part := store.Part{}
	var err error
	if compiled {
		err = b.step(of, func(s *Step) (err error) {
			part, err = compiler.CompileBootstrap(ctx, s)
			return err
		})
	} else {
		part.Tree, err = b.filesTree(ctx, names, files)
	}
	if err != nil {
		return store.Part{}, err
	}
	part.Kind, part.Name, part.Version, part.Prefix = "bootstrap", runtime.Name(), hash[:12], bootstrapPrefix
	return part, b.Store.PutPart(ctx, key, part)
}

func (b *Builder) filesTree(ctx context.Context, names []string, files map[string][]byte) (store.Digest, error) {
	w, err := b.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for _, name := range names {
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(files[name], []byte(elf.ELFMAG)) {
			mode = 0o755
		}
		if err := w.File(name, mode, systemTime, bytes.NewReader(files[name])); err != nil {
			return "", err
		}
	}
	return w.Commit(ctx)
}
