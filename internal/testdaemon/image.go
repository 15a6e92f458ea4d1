package testdaemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Function is an image with one static program, made without a build: for tests that need neither a
// base environment nor the network to fetch a base from.
type Function struct {
	Name    string
	Program string // path of the program
	Config  image.Config
}

// PutImages puts the functions' images into the registry of a state directory that no engine uses.
// `fre deploy --image NAME:1` then deploys a function. Each Config holds only the differences from
// the default: one warm instance that speaks the channel.
func PutImages(ctx context.Context, state string, functions ...Function) (err error) {
	st, err := store.Open(filepath.Join(state, "store"), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	for _, f := range functions {
		if err := putImage(ctx, st, f); err != nil {
			return fmt.Errorf("image of %s: %w", f.Name, err)
		}
	}
	return nil
}

func putImage(ctx context.Context, st *store.Store, f Function) error {
	program, err := os.Open(f.Program)
	if err != nil {
		return err
	}
	defer program.Close()
	w, err := st.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	if err := w.File("function/program", 0o755, time.Unix(1, 0), program); err != nil {
		return err
	}
	for _, name := range []string{"etc/hosts", "etc/resolv.conf"} { // mount points, present in every base
		if err := w.File(name, 0o644, time.Unix(1, 0), strings.NewReader("")); err != nil {
			return err
		}
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return err
	}
	f.setDefaults()
	config, err := json.Marshal(f.Config)
	if err != nil {
		return err
	}
	_, err = st.PutImage(ctx, store.Manifest{
		Name: f.Name, Version: "1", Config: config,
		Parts: []store.Part{{Kind: "code", Name: f.Name, Tree: tree}},
	})
	return err
}

func (f *Function) setDefaults() {
	c := &f.Config
	c.Base, c.Network.Mode = "native", template.NetworkNone
	if c.Args == nil {
		c.Args = []string{"/function/program"}
	}
	if c.Tenant == "" {
		c.Tenant = template.DefaultTenant
	}
	if c.Protocol == "" {
		c.Protocol, c.Instances.Isolation = image.ProtocolChannel, template.IsolationInstance
	}
	if c.Protocol == image.ProtocolStdio {
		c.Instances.Isolation = template.IsolationEvent
	}
	in, r := &c.Instances, &c.Resources
	for _, d := range []struct {
		field *int64
		value int64
	}{{&r.MemoryBytes, 128 << 20}, {&r.CPUMillis, 1000}, {&r.Pids, 64}, {&r.TmpBytes, 16 << 20}, {&r.Files, 1024}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	in.Concurrency, in.Max = max(in.Concurrency, 1), max(in.Max, 1)
	if in.Idle == 0 {
		in.Idle = time.Minute
	}
}
