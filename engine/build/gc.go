package build

import (
	"context"
	"fmt"
	"time"

	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// GC removes the images selected by the policy, then all content without an image.
// Builds, starts and lists continue meanwhile. If an image cannot be removed, GC logs the error
// and continues.
func (l *Library) GC(ctx context.Context, o GCOptions) (report *GCReport, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		report, err = l.gc(ctx, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("garbage collection: %w", err)
	}
	return report, nil
}

func (l *Library) gc(ctx context.Context, o GCOptions) (*GCReport, error) {
	policy := l.cfg.GC.Policy
	if o.Policy != nil {
		policy = *o.Policy
	}
	if err := policy.Check(); err != nil {
		return nil, err
	}
	l.gcMu.Lock()
	defer l.gcMu.Unlock()
	start := time.Now()
	report := &GCReport{}
	if o.Cache {
		gone, err := l.gcCache(ctx, o.DryRun)
		if err != nil {
			return nil, err
		}
		report.Add(gone)
		report.CacheBytes = gone.Bytes
	}
	if err := l.gcImages(ctx, policy, o.DryRun, report); err != nil {
		return nil, err
	}
	swept, err := l.store.Sweep(ctx, store.SweepOptions{DryRun: o.DryRun})
	if err != nil {
		return nil, err
	}
	report.Add(swept)
	report.Took = time.Since(start)
	if !o.DryRun {
		if o.Cache {
			l.pruned(store.ChangeCache, report.CacheBytes)
		}
		if policy.removes() {
			l.pruned(store.ChangeImage, report.Bytes-report.CacheBytes)
		}
		l.cfg.Collected(report)
		l.cfg.Log.InfoContext(ctx, "garbage collected", "images", len(report.Images), "objects", report.Objects, "bytes", report.Bytes, "took", report.Took)
	}
	return report, nil
}

func (l *Library) gcImages(ctx context.Context, policy GCPolicy, dry bool, report *GCReport) error {
	users := l.cfg.Users()
	for d := range users {
		l.store.Use(d)
	}
	if err := l.store.SaveUses(ctx); err != nil {
		l.cfg.Log.WarnContext(ctx, "times of the last use of images not written", "error", err)
	}
	if !policy.removes() {
		return nil
	}
	c := gcChoice{policy: policy, store: l.store, users: users, now: time.Now()}
	chosen, bytes := c.choose()
	if dry {
		report.Bytes += bytes
	}
	for _, x := range chosen {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if dry {
			report.Images = append(report.Images, x.GCImage)
			continue
		}
		swept, gone, err := l.removeUnused(ctx, x)
		report.Add(swept)
		if err != nil {
			l.cfg.Log.WarnContext(ctx, "image not removed", "image", x.Image.Digest, "rule", x.Rule, "error", err)
		}
		if gone {
			report.Images = append(report.Images, x.GCImage)
		}
	}
	return nil
}

// Collect runs GC at intervals until Close.
func (l *Library) Collect() {
	t := time.NewTicker(l.cfg.GC.Interval)
	defer t.Stop()
	for {
		select {
		case <-l.cfg.Life.Closed():
			return
		case <-t.C:
		}
		if _, err := l.GC(l.cfg.Life.Context(), GCOptions{}); err != nil && !l.cfg.Life.Stopping() {
			l.cfg.Log.Warn("garbage collection failed: the next run repeats the work", "error", err)
		}
	}
}

// Fsck checks everything in the store. If asked to, it repairs the store, also from registries
// that still have the content. It never drops an image in use.
func (l *Library) Fsck(ctx context.Context, o store.CheckOptions) (done store.Checked, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		done, err = l.fsck(ctx, o)
		return err
	})
	return done, err
}

func (l *Library) fsck(ctx context.Context, o store.CheckOptions) (store.Checked, error) {
	l.gcMu.Lock()
	defer l.gcMu.Unlock()
	again := oci.NewRefetcher(l.store, l.registry(ctx, nil, nil))
	defer func() {
		if err := again.Close(); err != nil {
			l.cfg.Log.WarnContext(ctx, "refetched content stays on disk until the next start", "error", err)
		}
	}()
	o.Fetch, o.FetchTree = again.Open, again.Tree
	o.InUse = func(d store.Digest) string { return l.cfg.Users()[d] }
	done, err := l.store.Check(ctx, o)
	if err == nil && done.Problems > 0 {
		l.cfg.Log.WarnContext(ctx, "store checked", "problems", done.Problems, "repaired", done.Repaired)
	}
	return done, err
}
