package server

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/store"
)

// storageRoutes are the routes of disk usage, collection and checks of the store.
type storageRoutes struct {
	engine Engine
	log    *slog.Logger
}

func (s *storageRoutes) routes() []route {
	return []route{
		{"GET", "/v1/system/df", s.diskUsage},
		{"POST", "/v1/images/prune", s.pruneImages},
		{"POST", "/v1/system/gc", s.gc},
		{"POST", "/v1/system/fsck", s.fsck},
	}
}

// pruneImages answers POST /v1/images/prune.
func (s *storageRoutes) pruneImages(w http.ResponseWriter, r *http.Request) error {
	var req api.PruneRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	policy := build.GCPolicy{
		All: req.All, Unused: time.Duration(req.UnusedNanos), PerName: req.PerName, MaxBytes: req.MaxBytes,
		Labels: req.Labels, Keep: req.Keep,
	}
	if req.Before != nil {
		policy.Before = *req.Before
	}
	// Without a rule, remove images without a name.
	policy.Nameless = !policy.All && policy.Unused == 0 && policy.PerName == 0 && policy.MaxBytes == 0
	return s.collect(w, r, build.GCOptions{DryRun: req.DryRun, Policy: &policy})
}

// gc answers POST /v1/system/gc.
func (s *storageRoutes) gc(w http.ResponseWriter, r *http.Request) error {
	var req api.GCRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	return s.collect(w, r, build.GCOptions{DryRun: req.DryRun, Cache: req.Cache})
}

func (s *storageRoutes) collect(w http.ResponseWriter, r *http.Request, o build.GCOptions) error {
	report, err := s.engine.GC(r.Context(), o)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.GCReport{
		DryRun: o.DryRun, Images: list(report.Images, prunedOf), Parts: report.Parts, Trees: report.Trees,
		Objects: report.Objects, Inodes: report.Inodes, Bytes: report.Bytes, CacheBytes: report.CacheBytes, TookNanos: report.Took.Nanoseconds(),
	})
}

func prunedOf(x build.GCImage) api.PrunedImage {
	return api.PrunedImage{Digest: string(x.Image.Digest), Names: x.Image.Names, Built: x.Image.Built, Rule: x.Rule, Bytes: x.Bytes}
}

// fsck answers POST /v1/system/fsck.
func (s *storageRoutes) fsck(w http.ResponseWriter, r *http.Request) error {
	var req api.FsckRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	out := &lines{w: w, log: s.log}
	got, err := s.engine.Fsck(r.Context(), store.CheckOptions{
		Repair: req.Repair,
		Report: func(p store.Problem) {
			out.send(api.FsckLine{Problem: &api.FsckProblem{Path: p.Path, What: p.What, Repair: p.Repair}})
		},
		Progress: func(dir string, done int) { out.send(api.FsckLine{Reading: dir, Done: done}) },
	})
	if err != nil {
		return out.end(r, err)
	}
	out.send(api.FsckLine{Result: &api.FsckResult{
		Objects: got.Objects, Bytes: got.Bytes, Trees: got.Trees, Images: got.Images, Problems: got.Problems, Repaired: got.Repaired,
	}})
	return nil
}

// diskUsage answers GET /v1/system/df.
func (s *storageRoutes) diskUsage(w http.ResponseWriter, _ *http.Request) error {
	u, err := s.engine.DiskUsage()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.DiskUsage{
		Images: list(u.Images, imageUsageOf), ImageBytes: u.ImageBytes, ImageInodes: u.ImageInodes, ReclaimableBytes: u.ReclaimableBytes,
		Tenants: list(u.Tenants, tenantUsageOf), Containers: list(u.Containers, containerUsageOf),
		Cache: api.CacheUsage{Bytes: u.Cache.Bytes, Inodes: u.Cache.Inodes, AsOf: asOf(u.Cache)},
	})
}
