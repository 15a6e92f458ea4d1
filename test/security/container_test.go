package security

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/volume"
)

// container gives a sandbox the root of an ordinary image: a writable root and capabilities.
func container(s *sandbox.Spec) {
	s.User.UID, s.User.GID = 0, 0
	s.Capabilities, s.Scratch = sandbox.ContainerCapabilities, &sandbox.Scratch{}
}

// orders runs testprog's commands one after the other in one sandbox. It returns the printed answer
// to each command, without "ok".
func orders(t testing.TB, h *sandbox.Host, spec sandbox.Spec, commands ...string) []string {
	t.Helper()
	in, w := pipe(t)
	if _, err := io.WriteString(w, strings.Join(commands, "\n")+"\n"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	spec.Args, spec.Stdin = []string{"/bin/prog", "orders"}, in
	var answers []string
	var said strings.Builder
	for line := range strings.Lines(run(t, h, spec)) {
		printed, last, ended := strings.Cut(line, "> ")
		said.WriteString(printed)
		if !ended {
			continue
		}
		if last != "ok\n" {
			said.WriteString(last)
		}
		answers = append(answers, strings.TrimSpace(said.String()))
		said.Reset()
	}
	if len(answers) != len(commands)+1 || answers[0] != "ready" {
		t.Fatalf("%d commands, answers %q", len(commands), answers)
	}
	return answers[1:]
}

// ownDir gives a sandbox's root an empty layer on disk.
func ownDir(t testing.TB) *sandbox.Scratch {
	t.Helper()
	return &sandbox.Scratch{Dir: t.TempDir()}
}

// A container's root cannot make files with a special meaning for the kernel: whiteouts and overlay
// attributes (CVE-2023-2640), file capabilities (CVE-2021-3493), devices, file flags and quota
// projects. The image stays unchanged.
func TestContainerFiles(t *testing.T) {
	h := openHost(t)
	names := []string{"whiteout", "opaque", "redirect", "immutable", "device", "file capabilities"}
	for name, scratch := range map[string]*sandbox.Scratch{"memory": {}, "disk": ownDir(t)} {
		t.Run(name, func(t *testing.T) {
			root := fretest.Rootfs(t)
			own(t, root)
			// Bare attempts that succeed change this root directory itself.
			refused(t, h, root, func(s *sandbox.Spec) {
				container(s)
				s.Scratch = scratch
			}, list("EPERM", 0, names...))
		})
	}
	root := fretest.Rootfs(t)
	own(t, root)
	if got := attempt(t, h, root, container, names...); strings.Contains(got, "done") {
		t.Error(got)
	}
	if _, err := os.Lstat(filepath.Join(root, "bin/whiteout")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a whiteout in the image: %v", err)
	}
	for _, name := range []string{"bin", "bin/own"} {
		if n, err := unix.Listxattr(filepath.Join(root, name), nil); err != nil || n != 0 {
			t.Errorf("%s of the image has attributes of %d bytes, %v", name, n, err)
		}
	}
}

// Mount points that are links in an image or a layer are replaced in the layer. A link on the way
// to a mount point is refused. The engine, which makes mount points as root of the host, makes no
// file outside.
func TestContainerMountPoints(t *testing.T) {
	h := openHost(t)
	work, outside := workDir(t, tenant), t.TempDir()
	for _, target := range []string{outside, "../../../../../../../.." + outside, ".", "/proc/self/cwd", "/missing"} {
		root, scratch := fretest.Rootfs(t), ownDir(t)
		for _, point := range []string{"proc", "dev", "tmp", "work"} {
			name := filepath.Join(root, point)
			if err := errors.Join(os.Remove(name), os.Symlink(target, name)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second round finds the first round's layer, with links again
			spec := prog(root)
			container(&spec)
			spec.Scratch, spec.Work = scratch, work
			got := orders(t, h, spec, "cat /proc/self/mountinfo", "rename /etc /moved", "symlink "+target+" /etc")
			if err := checkMounts(got[0] + "\n"); err != nil {
				t.Errorf("mount points that were links to %s: %v", target, err)
			}
			for _, point := range []string{"proc", "dev", "tmp", "work"} {
				name := filepath.Join(scratch.Dir, "upper", point)
				if err := errors.Join(os.Remove(name), os.Symlink(target, name)); err != nil {
					t.Fatal(err)
				}
			}
			spec.Mounts = []sandbox.Mount{{Source: outside, Target: "/etc/new/hosts"}}
			if s, err := h.Start(t.Context(), spec); !errors.Is(err, unix.ELOOP) {
				if s != nil {
					s.Kill()
				}
				t.Errorf("mount below a link to %s: %v, want %v", target, err, unix.ELOOP)
			}
		}
	}
	if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
		t.Errorf("made outside of the roots: %v, %v", made, err)
	}
}

// A set-id program made by root inside runs as the user who starts the program. The mount's flag
// and the process's flag each suffice alone.
func TestContainerSetuid(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	const nosuid, noNewPrivs = sandbox.DefenceNoSuid, sandbox.DefenceNoNewPrivs
	for _, c := range []struct {
		without sandbox.Defence
		want    string
	}{
		{0, "euid 1000 caps 0000000000000000"},
		{nosuid, "euid 1000 caps 0000000000000000"},
		{noNewPrivs, "euid 1000 caps 0000000000000000"},
		{nosuid | noNewPrivs, "euid 0 caps 00000000000001fb"},
	} {
		spec := prog(root)
		container(&spec)
		spec.Scratch, spec.Without = ownDir(t), c.without
		got := orders(t, h, spec, "clone /bin/prog /bin/suid", "chmod 6755 /bin/suid", "become 1000", "spawn /bin/suid euid")
		if want := []string{"", "", "", c.want}; !slices.Equal(got, want) {
			t.Errorf("without defences %b: %q, want %q", c.without, got, want)
		}
	}
}

// A device file in an image or in a layer cannot be opened. (No store accepts devices in images.)
func TestContainerDevices(t *testing.T) {
	h := openHost(t)
	for name, in := range map[string]func(root, layer string) string{
		"image": func(root, _ string) string { return filepath.Join(root, "bin") },
		"layer": func(_, layer string) string { return filepath.Join(layer, "upper/bin") },
	} {
		t.Run(name, func(t *testing.T) {
			root, scratch := fretest.Rootfs(t), ownDir(t)
			dir := in(root, scratch.Dir)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Join(scratch.Dir, "work"), 0o700)); err != nil {
				t.Fatal(err)
			}
			device := filepath.Join(dir, "device")
			if err := errors.Join(unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(1, 5))), os.Chmod(device, 0o666)); err != nil {
				t.Fatal(err)
			}
			refused(t, h, root, func(s *sandbox.Spec) {
				container(s)
				s.Scratch = scratch
			}, []try{{"open device", "EACCES", sandbox.DefenceNoSuid}})
		})
	}
	spec := prog(fretest.Rootfs(t))
	container(&spec)
	got := orders(t, h, spec, "ls /dev", "write /dev/new x", "remove /dev/null")
	want := []string{"fd\nfull\nnull\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero", "open /dev/new: read-only file system", "unlinkat /dev/null: read-only file system"}
	if !slices.Equal(got, want) {
		t.Errorf("/dev: %q, want %q", got, want)
	}
}

// A program cannot fake input on a container's terminal (TIOCSTI, CVE-2017-5226), attach a line
// discipline, or make the terminal the console. The container sees no other terminal.
func TestContainerTerminal(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	attack := func(without sandbox.Defence, args ...string) map[string]string {
		t.Helper()
		master, terminal, err := sandbox.OpenTerminal(tenant.HostBase)
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		spec := prog(root, args...)
		container(&spec)
		spec.TTY, spec.Stdin, spec.Without = true, terminal, without
		defer terminal.Close()
		return outcomes(run(t, h, spec))
	}
	tries := []string{"attack", "terminal input", "line discipline", "console"}
	for name, how := range attack(0, tries...) {
		if how != "EPERM" {
			t.Errorf("%s: %q, want EPERM", name, how)
		}
	}
	undefended := attack(seccomp, tries...)
	if undefended["terminal input"] != "done" || undefended["line discipline"] != "done" {
		t.Errorf("without the filter %v: the test proves nothing", undefended)
	}
	if how := undefended["console"]; how != "EPERM" { // needs a capability on the host
		t.Errorf("console without the filter: %q, want EPERM", how)
	}
	spec := prog(root)
	container(&spec)
	got := orders(t, h, spec, "ls /dev/pts", "cat /dev/ptmx", "cat /dev/tty", "cat /dev/console")
	if got[0] != "" {
		t.Errorf("terminals in /dev/pts: %q", got[0])
	}
	for i, got := range got[1:] {
		if !strings.HasSuffix(got, "no such file or directory") && !strings.HasSuffix(got, "no such device or address") {
			t.Errorf("another's terminal, attempt %d: %q", i, got)
		}
	}
}

// Files that the engine mounts into a container stay unchanged, whatever its root tries.
func TestContainerGivenFiles(t *testing.T) {
	h := openHost(t)
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	commands := []string{"write /etc/hosts x", "chmod 777 /etc/hosts", "remove /etc/hosts", "symlink /tmp/x /etc/other", "rename /etc/other /etc/hosts", "cat /etc/hosts"}
	spec := prog(fretest.Rootfs(t))
	container(&spec)
	spec.Mounts = []sandbox.Mount{{Source: hosts, Target: "/etc/hosts"}}
	want := []string{
		"open /etc/hosts: read-only file system", "read-only file system", "unlinkat /etc/hosts: device or resource busy", "",
		"rename /etc/other /etc/hosts: device or resource busy", "given",
	}
	if got := orders(t, h, spec, commands...); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := content(t, hosts); string(got) != "given\n" {
		t.Errorf("the file: %q", got)
	}
}

// A container may listen on ports below 1024 of its own network namespace. On the host's network
// these ports stay reserved for the host's root.
func TestContainerPorts(t *testing.T) {
	if !fretest.OwnNetwork(t) { // a fresh namespace, because this machine may allow low ports to all users
		return
	}
	h := openHost(t)
	root := fretest.Rootfs(t)
	if got := attempt(t, h, root, container, "port"); got != "port: done\n" {
		t.Errorf("in its own namespace: %q", got)
	}
	onHost := func(s *sandbox.Spec) {
		container(s)
		s.Network = sandbox.NetworkHost
	}
	if got := attempt(t, h, root, onHost, "port"); got != "port: EACCES\n" {
		t.Errorf("on the host: %q, want EACCES", got)
	}
}

// /proc and the mount list show the root of an ordinary image no more than a function sees, and
// never the place of its layer.
func TestContainerSees(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	refused(t, h, root, container, append(
		list("ENOENT", sandbox.DefenceProcSubset, "keys", "key users", "cmdline", "symbols", "modules", "interrupts", "partitions", "host's cpuinfo"),
		list("ENOENT", 0, "sysctl", "sysrq", "kernel memory", "sysfs")...,
	))
	for name, scratch := range map[string]*sandbox.Scratch{"memory": {}, "disk": ownDir(t)} {
		work := workDir(t, tenant)
		spec := prog(root, "cat", "/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/mountstats",
			"/proc/self/cgroup", "/proc/self/maps", "/proc/self/environ", "/proc/self/cmdline")
		container(&spec)
		spec.Scratch, spec.Work = scratch, work
		text := run(t, h, spec)
		if !strings.Contains(text, work) || !strings.Contains(text, " - overlay ") {
			t.Errorf("%s: neither /work nor an overlay among the mounts: the test proves nothing:\n%s", name, text)
		}
		text = strings.ReplaceAll(text, work, "")
		for _, secret := range []string{root, scratch.Dir, filepath.Dir(root), " shared:", " master:", " propagate_from:", "/fre-"} {
			if secret != "" && strings.Contains(text, secret) {
				t.Errorf("%s: %q shows in a container:\n%s", name, secret, text)
			}
		}
	}
}

// A container's root and its tenant's /work hold at most their limits, with all capabilities of the
// root inside. Neither escapes the volume's count.
func TestContainerFillsDisk(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	places := map[string]volume.Kind{t.TempDir(): volume.Image}
	for _, dir := range filepath.SplitList(os.Getenv("FRE_TEST_QUOTA_DIRS")) {
		dir, err := os.MkdirTemp(dir, "fre-security-") //nolint:usetesting // another file system
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		places[dir] = volume.Quota
	}
	for dir, kind := range places {
		t.Run(fmt.Sprint(kind, " ", filepath.Base(dir)), func(t *testing.T) {
			cfg := volume.Config{Dir: filepath.Join(dir, "removed")}
			if kind == volume.Image {
				cfg.Avoid = []volume.Kind{volume.Quota}
			}
			m, err := volume.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}()
			const limit = 8 << 20
			attach := func(name string) *volume.Volume {
				v, err := m.Attach(filepath.Join(dir, name), volume.Limits{Bytes: limit})
				if err != nil {
					t.Fatal(err)
				}
				if v.Kind() != kind {
					t.Fatalf("%s is %s, want %s", name, v.Kind(), kind)
				}
				return v
			}
			scratch, work := attach("scratch"), attach("work")
			if err := os.Chown(work.Dir(), int(tenant.HostBase), int(tenant.HostBase)); err != nil {
				t.Fatal(err)
			}
			spec := prog(root)
			container(&spec)
			spec.Scratch, spec.Work = &sandbox.Scratch{Dir: scratch.Dir()}, work.Dir()
			got := orders(t, h, spec, "write /bin/mine x", "write /work/mine x",
				"project /bin/mine 7", "project /work/mine 7", "project /work 7", "project /work -1", "project / -1", "fill /bin/full", "fill /work/full")
			for i, answer := range got[2:7] {
				// An image volume has no inherited project to leave.
				if kind == volume.Image && i >= 3 {
					continue
				}
				if !strings.HasSuffix(answer, "invalid argument") {
					t.Errorf("leave one's project, attempt %d: %q, want invalid argument", i, answer)
				}
			}
			for _, answer := range got[7:] {
				if !strings.HasSuffix(answer, "no space left on device") && !strings.HasSuffix(answer, "disk quota exceeded") {
					t.Errorf("fill: %q", answer)
				}
			}
			for _, v := range []*volume.Volume{scratch, work} {
				if u, err := v.Usage(); err != nil || u.Bytes > limit || u.Bytes < limit-1<<20 {
					t.Errorf("%s full: counts %+v (%v) of %d", v.Path(), u, err, limit)
				}
			}
			if kind == volume.Quota { // the host's root can leave a project
				cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin/prog"), "project", filepath.Join(work.Dir(), "mine"), "7")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("host's root leaves a project: %v, %s: the test proves nothing", err, out)
				}
			}
		})
	}
}
