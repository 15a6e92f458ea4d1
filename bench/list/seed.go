package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// seedWorkers is the number of images made in parallel, because making an image waits for the disk.
const seedWorkers = 8

// seed puts the images first to last-1 into the registry of a state directory that no engine uses.
// Each image has the given number of parts. The last part, a tree of three files, belongs to one
// image alone.
func seed(ctx context.Context, state string, first, last, parts int) (err error) {
	if err := os.MkdirAll(state, 0o711); err != nil {
		return err
	}
	st, err := store.Open(filepath.Join(state, "store"), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	release := st.Hold() // protects trees that no image contains yet
	defer release()
	var shared []store.Part
	for i := range parts - 1 {
		tree, err := commit(ctx, st, map[string]string{fmt.Sprintf("usr/lib/layer-%d/data", i): fmt.Sprintf("layer %d\n", i)})
		if err != nil {
			return err
		}
		shared = append(shared, store.Part{Kind: "pip", Name: fmt.Sprintf("layer-%d", i), Version: "1.0", Tree: tree})
	}
	config, err := json.Marshal(image.Config{
		Base: "native", Args: []string{"/function/program"}, Protocol: image.ProtocolStdio, Tenant: template.DefaultTenant,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, Network: template.Network{Mode: template.NetworkNone},
		Labels: map[string]string{"org.opencontainers.image.vendor": "bench"},
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(seedWorkers)
	for i := first; i < last && ctx.Err() == nil; i++ {
		group.Go(func() error {
			name := imageName(i)
			tree, err := commit(ctx, st, map[string]string{
				"function/program": name, "function/data/a": name + "/a", "function/data/b": name + "/b",
			})
			if err != nil {
				return err
			}
			_, err = st.PutImage(ctx, store.Manifest{
				Name: name, Version: "1", Config: config,
				Parts: append(shared[:len(shared):len(shared)], store.Part{Kind: "code", Name: name, Tree: tree}),
			})
			return err
		})
	}
	return group.Wait()
}

func imageName(i int) string { return fmt.Sprintf("bench-%05d", i) }

// commit stores a tree of the given files.
func commit(ctx context.Context, st *store.Store, files map[string]string) (store.Digest, error) {
	w, err := st.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for path, text := range files {
		if err := w.File(path, 0o644, time.Unix(1, 0), strings.NewReader(text)); err != nil {
			return "", err
		}
	}
	return w.Commit(ctx)
}

// archive writes n images in the format of `docker load`: each has a layer of its own above
// layers-1 shared layers.
func archive(w io.Writer, n, layers int) error {
	out := tar.NewWriter(w)
	put := func(name string, content []byte) error {
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(1, 0)})
		if err == nil {
			_, err = out.Write(content)
		}
		return err
	}
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var manifest []entry
	var paths, ids []string // of the shared layers
	add := func(text string) (path, id string, err error) {
		content, err := layer(text)
		if err != nil {
			return "", "", err
		}
		path = hexSum(content) + "/layer.tar"
		return path, "sha256:" + hexSum(content), put(path, content)
	}
	for i := range layers - 1 {
		path, id, err := add(fmt.Sprintf("layer-%d", i))
		if err != nil {
			return err
		}
		paths, ids = append(paths, path), append(ids, id)
	}
	for i := range n {
		path, id, err := add(imageName(i))
		if err != nil {
			return err
		}
		config, err := json.Marshal(map[string]any{
			"architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
			"config": map[string]any{
				"Cmd": []string{"/function/program"}, "Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
				"Labels": map[string]string{"org.opencontainers.image.vendor": "bench"},
			},
			"rootfs": map[string]any{"type": "layers", "diff_ids": append(ids[:len(ids):len(ids)], id)},
		})
		if err != nil {
			return err
		}
		name := hexSum(config) + ".json"
		if err := put(name, config); err != nil {
			return err
		}
		manifest = append(manifest, entry{name, []string{imageName(i) + ":1"}, append(paths[:len(paths):len(paths)], path)})
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return errors.Join(put("manifest.json", text), out.Close())
}

// layer returns the tar of a layer with one small file.
func layer(name string) ([]byte, error) {
	var b bytes.Buffer
	if err := files(&b, 1, "data/"+name+"/"); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// files writes a tar of n files of 64 bytes below dir, with a thousand files per subdirectory.
func files(w io.Writer, n int, dir string) error {
	out := tar.NewWriter(w)
	text := bytes.Repeat([]byte("x"), 64)
	for i := range n {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s%d/%d", dir, i/1000, i), Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(1, 0)}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return out.Close()
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
