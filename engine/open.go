package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/volume"
)

// Open loads the deployed functions and starts the instances that their templates keep warm.
func Open(cfg Config) (_ *Engine, err error) {
	memory, err := sandbox.HostMemory()
	if err != nil {
		return nil, err
	}
	if err := cfg.complete(memory); err != nil {
		return nil, err
	}
	if err := prepareStateDir(cfg.StateDir); err != nil {
		return nil, err
	}
	e := &Engine{host: &host{cfg: cfg, log: cfg.Log, metrics: newMetrics(), life: live.NewLife(), explainer: image.NewExplainer(cfg.Builder.Runtimes)}, started: time.Now()}
	e.agents = newAgents(e)
	e.boxes = live.NewTable(e.life, cfg.Sandboxes, cfg.Store.Changes())
	e.List = live.NewList(e.boxes)
	if e.buffers, err = buffer.New(buffer.Config{Bytes: cfg.BufferBytes, Lock: cfg.BufferLock, Huge: cfg.BufferHuge}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.buffers.Close())
		}
	}()
	e.slots = newSlots(cfg.Concurrency, cfg.Queue)
	if err := e.openAdmission(); err != nil {
		return nil, err
	}
	e.interpreters = newInterpreters(e.host, cfg.Interpreters)
	e.forks.left = memory / 100 * int64(cfg.ForkPercent)
	e.networks = live.Networks{Host: cfg.Sandboxes, AllowHost: cfg.AllowHostNetwork}
	if err := e.openVolumes(); err != nil {
		return nil, err
	}
	e.register(cfg.Metrics)
	e.nextID.Store(uint64(time.Now().UnixMilli()) << 20)
	if cfg.Builder.Run == nil {
		cfg.Builder.Run = buildRunner{e.host, e.interpreters}
	}
	e.loadFunctions()
	e.life.Spawn(e.interpreters.prune)
	e.life.Spawn(e.tenants.AttachAll)
	e.life.Spawn(e.watchAdmission)
	if cfg.GC.Interval > 0 {
		e.life.Spawn(e.Collect)
	}
	return e, nil
}

// prepareStateDir removes what a check has left, and makes the directories of logs and tenants.
func prepareStateDir(stateDir string) error {
	if err := removeChecks(stateDir); err != nil {
		return fmt.Errorf("open engine: %w", err)
	}
	// Only root may reach tenants' files: their owners are ids that the host's users may have.
	for dir, mode := range map[string]os.FileMode{"logs": 0o711, "tenants": 0o700} {
		path := filepath.Join(stateDir, dir)
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	return nil
}

// openVolumes opens the parts that keep directories with a size limit: tenants, images, containers.
func (e *Engine) openVolumes() (err error) {
	cfg := &e.cfg
	if e.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(cfg.StateDir, "removed"), Avoid: cfg.avoid, Log: cfg.Log}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.volumes.Close())
		}
	}()
	e.tenants, err = live.NewTenants(live.TenantsConfig{
		Store: cfg.Store, Volumes: e.volumes, Life: e.life, Log: cfg.Log, StateDir: cfg.StateDir, UIDBase: cfg.UIDBase, Work: cfg.Work, Quotas: cfg.Quotas,
	})
	if err != nil {
		return err
	}
	e.holds = live.NewHolds(cfg.Store)
	e.Library, err = build.Open(build.Config{
		Store: cfg.Store, Builder: cfg.Builder, Volumes: e.volumes, Life: e.life, Boxes: e.boxes, Tenants: e.tenants, Holds: e.holds, Log: cfg.Log, StateDir: cfg.StateDir,
		Users: e.imageUsers, Collected: func(r *build.GCReport) { e.metrics.collected(r) },
		BuildTime: cfg.BuildTime, ImageLimits: cfg.ImageLimits, InsecureRegistries: cfg.InsecureRegistries, Outward: cfg.Outward, Signatures: cfg.Signatures, GC: cfg.GC,
	})
	if err != nil {
		return err
	}
	e.prepareScratches()
	e.Manager, err = container.Open(container.ManagerConfig{
		Store: cfg.Store, Host: cfg.Sandboxes, Volumes: e.volumes, Scratches: e.scratches, Life: e.life, Boxes: e.boxes, Tenants: e.tenants,
		Holds: e.holds, Networks: e.networks, Log: cfg.Log, StateDir: cfg.StateDir, LogBytes: cfg.LogBytes, LogFiles: cfg.LogFiles,
	})
	if err != nil {
		e.closeScratches()
	}
	return err
}

// loadFunctions loads the deployed functions and starts the instances that they keep warm.
func (e *Engine) loadFunctions() {
	functions := make(map[string]*deployment)
	e.functions.Store(&functions)
	e.forgetTemporary()
	e.qualifyNames()
	for _, rec := range e.cfg.Store.Functions() {
		d, err := e.loadRecord(rec)
		if err != nil {
			// One damaged record must not keep the other functions from answering.
			e.log.Error("function not loaded", "function", rec.Name, "error", err)
			continue
		}
		functions[rec.Name] = d
	}
	e.each(func(f *function) {
		// spec makes the egress network, if the function needs one, before the first event.
		if _, err := f.spec(""); err != nil {
			e.log.Error("function cannot start", "function", f.name, "error", err)
		}
		// Deployed on a larger host, the function goes on with the resources of this host.
		if err := live.CheckLimits(e.cfg.Sandboxes, f.config.Resources); err != nil {
			e.log.Warn("the host cannot enforce limits of the function", "function", f.name, "error", err)
		}
		e.prepare(f)
		f.warm()
	})
}

// Close refuses new work, waits until ctx ends for work in flight, kills every sandbox and waits
// for the sandboxes' watchers.
func (e *Engine) Close(ctx context.Context) error {
	if !e.life.Close() {
		return nil
	}
	e.each(func(f *function) { f.tunnels.end() })
	wait, err := e.life.Drain(ctx)
	retireAll := func() { e.each((*function).retire) }
	retireAll()
	e.boxes.Close()
	wait()      // every invocation ends with its sandbox
	retireAll() // again: a Deploy may have published a function meanwhile
	e.interpreters.closeTools()
	e.life.End()
	e.Library.Close()
	for _, d := range *e.functions.Load() {
		d.logs.Close()
		err = errors.Join(err, d.main.endTrace())
	}
	e.Manager.Close()
	e.agents.close()
	e.closeScratches()
	return errors.Join(err, e.volumes.Close(), e.buffers.Close())
}

// forgetTemporary removes the temporary functions of an earlier engine. A function with an error
// does not keep the rest from starting.
func (e *Engine) forgetTemporary() {
	for _, rec := range e.cfg.Store.Functions() {
		var spec functionSpec
		if json.Unmarshal(rec.Spec, &spec) != nil || !spec.Temporary {
			continue
		}
		err := errors.Join(e.cfg.Store.RemoveFunction(context.Background(), rec.Name), os.RemoveAll(e.logDir(rec.Name)))
		if err != nil {
			e.log.Error("temporary function not removed", "function", rec.Name, "error", err)
		}
	}
	left, err := os.ReadDir(filepath.Join(e.cfg.StateDir, "tenants", temporaryName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.log.Error("temporary functions not removed", "error", err)
	}
	for _, dir := range left {
		if err := e.removeTemporary(dir.Name()); err != nil {
			e.log.Error("temporary function's /work not removed", "function", dir.Name(), "error", err)
		}
	}
}
