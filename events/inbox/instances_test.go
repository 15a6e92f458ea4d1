package inbox

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Each owner has a limit of inotify instances, and all owners share one. A refusal names the limit,
// and a returned instance is free for the next owner.
func TestInstances(t *testing.T) {
	i := NewInstances(3, 2)
	var files []*os.File
	for _, c := range []struct{ owner, refused string }{
		{"red", ""},
		{"red", ""},
		{"red", "red has all of its 2 instances"},
		{"blue", ""},
		{"blue", "fs.inotify.max_user_instances"},
	} {
		f, _, err := i.open(c.owner)
		switch {
		case c.refused == "" && err != nil:
			t.Fatalf("%s: %v", c.owner, err)
		case c.refused == "":
			files = append(files, f)
		case !errors.Is(err, errNoInstance) || !strings.Contains(err.Error(), c.refused):
			t.Errorf("%s: got %v, want one that says %q", c.owner, err, c.refused)
		}
	}
	if err := i.close("red", files[0]); err != nil {
		t.Fatal(err)
	}
	f, _, err := i.open("blue")
	if err != nil {
		t.Fatalf("one was given back: %v", err)
	}
	for owner, f := range map[string]*os.File{"red": files[1], "blue": files[2]} {
		if err := i.close(owner, f); err != nil {
			t.Error(err)
		}
	}
	if err := i.close("blue", f); err != nil {
		t.Error(err)
	}
	if i.all != 0 || len(i.taken) != 0 {
		t.Errorf("after all were given back %d are taken: %v", i.all, i.taken)
	}
	i.init = func(int) (int, error) { return -1, unix.EMFILE }
	if _, _, err := i.open("red"); !errors.Is(err, unix.EMFILE) || i.all != 0 {
		t.Errorf("the kernel gives none: %v, %d taken", err, i.all)
	}
}

// Without an instance the inbox still finds files, only later, and logs this once. It takes a
// returned instance.
func TestNoInstance(t *testing.T) {
	t.Parallel()
	first := open(t, "x")
	first.write("x", "1")
	first.wants("x")
	var said strings.Builder
	second := &box{t: t, cfg: Config{
		Dir: t.TempDir(), Pattern: "*", Record: filepath.Join(t.TempDir(), "record"), Owner: first.cfg.Owner, Instances: first.cfg.Instances,
		Log: slog.New(slog.NewTextHandler(&said, nil)),
	}}
	first.cfg.Instances.mu.Lock()
	first.cfg.Instances.each = 1
	first.cfg.Instances.mu.Unlock()
	second.write("there", "1")
	second.start()
	second.wants("there")
	second.write("later", "1")
	second.wants("there", "later")
	first.stop()
	second.until(func() error {
		i := second.cfg.Instances
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.all != 1 {
			return errors.New("the instance was not taken")
		}
		return nil
	})
	second.write("last", "1")
	second.wants("there", "later", "last")
	second.stop()
	if n := strings.Count(said.String(), errNoInstance.Error()); n != 1 {
		t.Errorf("the log says %d times that there is none, want once:\n%s", n, said.String())
	}
	if i := second.cfg.Instances; i.all != 0 {
		t.Errorf("%d instances are taken at the end", i.all)
	}
}
