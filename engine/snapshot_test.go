package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// holes makes a sandbox of acme with a file of this size and without blocks in /work.
func (r *rig) holes(id string, bytes, limit int64) {
	r.t.Helper()
	work := r.t.TempDir()
	file := filepath.Join(work, id)
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, bytes)); err != nil {
		r.t.Fatal(err)
	}
	r.agents.mu.Lock()
	defer r.agents.mu.Unlock()
	r.agents.byID[id] = &agent{f: &function{program: program{host: r.host, name: id + ".acme", work: work}}, shown: Agent{ID: id, Tenant: "acme", WorkBytes: limit}}
	r.t.Cleanup(func() {
		r.agents.mu.Lock()
		defer r.agents.mu.Unlock()
		delete(r.agents.byID, id)
	})
}

// kept counts the files in some directories of the store.
func (r *rig) kept(dirs ...string) (n int) {
	r.t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(r.state, "store", dir), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				n++
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another snapshot may vanish meanwhile
			r.t.Fatal(err)
		}
	}
	return n
}

// TestSnapshotBounds: a snapshot respects the tenant's quota and the limit of /work, even if the
// files are large with few blocks. A refused snapshot leaves nothing behind, even after the engine
// has read it.
func TestSnapshotBounds(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{ImageBytes: 1 << 20})
	refused := func(id, what string, is func(error) bool) {
		t.Helper()
		if _, err := r.Agents().TakeSnapshot(t.Context(), id); err == nil || !is(err) {
			t.Errorf("%s: %v, want %s", id, err, what)
		}
		if n := r.kept("objects", "trees", "tmp", "images"); n != 0 {
			t.Errorf("%s: it has left %d files", id, n)
		}
	}
	quota := func(what string) func(error) bool {
		return func(err error) bool {
			full, ok := errors.AsType[*live.QuotaError](err)
			return ok && full.What == what
		}
	}
	r.holes("more", 2<<20, 0)
	refused("more", "a QuotaError", quota("bytes of images"))
	r.holes("over", 1<<19, 1<<18)
	refused("over", "ErrSnapshotLimit", func(err error) bool {
		return errors.Is(err, ErrSnapshotLimit) && strings.Contains(err.Error(), "sparse files")
	})

	// Another image of the tenant arrives after the snapshot was read.
	now.Store(&live.Quotas{Images: 1})
	r.holes("late", 1<<20, 0)
	cfg, err := json.Marshal(image.Config{Tenant: "acme", Protocol: image.ProtocolChannel})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := r.Admit(t.Context(), &store.Image{Digest: "sha256:0", Manifest: store.Manifest{Config: cfg}}, "acme")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.Agents().TakeSnapshot(t.Context(), "late")
		ended <- err
	}()
	eventually(t, "its tree", func() bool { return r.kept("trees") == 1 })
	other := r.image("other", ofAcme)
	stored()
	if err := <-ended; !quota("images")(err) {
		t.Errorf("late: %v, want a QuotaError", err)
	}
	if n := r.kept("trees"); n != 1 || !r.store.HasTree(other.Parts[0].Tree) {
		t.Errorf("%d trees are left, want the other image's", n)
	}
	now.Store(&live.Quotas{})
	if img, err := r.Agents().TakeSnapshot(t.Context(), "late"); err != nil || img.Size != 1<<20 {
		t.Errorf("once there is room: %v, %v", img, err)
	}
}

// TestSnapshotWaits: a snapshot waits for its turn among builds.
func TestSnapshotWaits(t *testing.T) {
	r, _ := quotaRig(t, live.Quotas{Builds: 1})
	r.holes("waits", 1<<20, 0)
	done := r.turn("acme")
	ended := make(chan error, 1)
	go func() {
		_, err := r.Agents().TakeSnapshot(t.Context(), "waits")
		ended <- err
	}()
	eventually(t, "a snapshot that waits", func() bool { return r.TenantUse("acme").WaitingBuilds == 1 })
	done()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSnapshotLeavesRoom: on a disk with too little room the engine takes no snapshot, even if the
// snapshot would fit.
func TestSnapshotLeavesRoom(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	r := &rig{t: t, state: filepath.Join(t.TempDir(), "state")}
	if err := errors.Join(os.Mkdir(r.state, 0o755), unix.Mount("fre-engine-test", r.state, "tmpfs", 0, "size=32m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(r.state, 0); err != nil {
			t.Errorf("unmount: %v", err)
			_ = unix.Unmount(r.state, unix.MNT_DETACH)
		}
	})
	r.start(Config{})
	r.holes("small", 1<<10, 0)
	var st unix.Statfs_t
	if err := unix.Statfs(r.state, &st); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(r.state, "ballast")
	if err := os.WriteFile(ballast, make([]byte, int64(st.Bavail)*st.Bsize-1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Agents().TakeSnapshot(t.Context(), "small"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Agents().TakeSnapshot(t.Context(), "small"); err != nil {
		t.Error(err)
	}
}
