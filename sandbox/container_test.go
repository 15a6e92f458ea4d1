package sandbox

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// container is a spec for an ordinary image.
func container(root string) Spec {
	spec := prog(root)
	spec.User.UID, spec.User.GID = 0, 0
	spec.Scratch, spec.Capabilities = &Scratch{}, ContainerCapabilities
	return spec
}

// TestContainerCapabilities: Root inside the sandbox can do the work of ordinary images, but only
// within its own user namespace.
func TestContainerCapabilities(t *testing.T) {
	h := openHost(t)
	root := imageRoot(t)
	spec := container(root)
	spec.Groups = []uint32{4, 27}
	order, _ := orders(t, h, spec)
	for _, step := range []struct{ command, want string }{
		{"groups", "[4 27]"},
		{"append /home/own more", "ok"}, // another user's file: DAC_OVERRIDE
		{"chown 101 /lib/a", "ok"},
		{"stat /lib/a", "100644 101 101"},
		{"chmod 600 /home/own", "ok"}, // FOWNER
		{"chown 65535 /lib/a", "ok"},
		{"chown 65536 /lib/a", "lchown /lib/a: invalid argument"}, // a host id
		{"port 127.0.0.1:80", "ok"},
		{"mount", "operation not permitted"},
		{"mknod /disk", "operation not permitted"},
		{"write /dev/x x", "open /dev/x: read-only file system"},
		{"sethostname x", "operation not permitted"},
		{"kill -1", "no such process"},
		{"become 101", "ok"},
		{"ids", "101 101 101 101 1"},
		{"append /home/own x", "open /home/own: permission denied"},
		{"append /lib/a x", "open /lib/a: permission denied"},
	} {
		if got := order(step.command); got != step.want {
			t.Errorf("%s: got %q, want %q", step.command, got, step.want)
		}
	}
	if got := order("cat /proc/self/status"); !strings.Contains(got, "CapEff:\t0000000000000000") || !strings.Contains(got, "NoNewPrivs:\t1") || !strings.Contains(got, "Seccomp:\t2") {
		t.Errorf("who is no root any more has privileges: %s", got)
	}
}

// TestContainerPrivileges: In a container root has exactly the container set of capabilities;
// another user, and a function, have none.
func TestContainerPrivileges(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	const none, all = "0000000000000000", "00000000000001fb"
	for name, test := range map[string]struct {
		uid          uint32
		capabilities Capabilities
		want         string
	}{
		"root":         {0, ContainerCapabilities, all},
		"less of it":   {0, 1<<unix.CAP_CHOWN | 1<<unix.CAP_KILL, "0000000000000021"},
		"another user": {1000, ContainerCapabilities, none},
		"a function":   {0, 0, none},
	} {
		t.Run(name, func(t *testing.T) {
			spec := prog(root, "cat", "/proc/self/status")
			spec.User.UID, spec.Capabilities = test.uid, test.capabilities
			out, _ := run(t, h, spec)
			for _, want := range []string{
				"CapInh:\t" + none, "CapPrm:\t" + test.want, "CapEff:\t" + test.want, "CapBnd:\t" + test.want, "CapAmb:\t" + none,
				"NoNewPrivs:\t1", "Seccomp:\t2",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("status lacks %q:\n%s", want, out)
				}
			}
		})
	}
	for name, change := range map[string]func(*Spec){
		"another capability": func(s *Spec) { s.Capabilities = 1 << unix.CAP_SYS_ADMIN },
		"a fork server":      func(s *Spec) { s.Capabilities, s.Forks = 1, 1 },
		"groups":             func(s *Spec) { s.Groups = make([]uint32, MaxGroups+1) },
		"a group":            func(s *Spec) { s.Groups = []uint32{idCount} },
		"no terminal":        func(s *Spec) { s.TTY = true },
	} {
		t.Run(name, func(t *testing.T) {
			spec := prog(root, "exit", "0")
			change(&spec)
			if _, err := h.Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), unix.EINVAL.Error()) {
				t.Errorf("got %v, want EINVAL", err)
			}
		})
	}
}

// TestParseCapabilities: The parser knows the name and number of each capability of this kernel.
func TestParseCapabilities(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  Capabilities
	}{
		{nil, 0},
		{[]string{"chown"}, 1 << unix.CAP_CHOWN},
		{[]string{"CAP_SETPCAP", "Cap_Kill", "KILL"}, 1<<unix.CAP_SETPCAP | 1<<unix.CAP_KILL},
		{[]string{"SYS_RESOURCE", "SETFCAP", "CHECKPOINT_RESTORE"}, 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_CHECKPOINT_RESTORE},
		{[]string{"ALL"}, 1<<(unix.CAP_LAST_CAP+1) - 1},
		{strings.Split(ContainerCapabilities.String(), ", "), ContainerCapabilities},
	} {
		if got, err := ParseCapabilities(c.names); err != nil || got != c.want {
			t.Errorf("%q: %v, %v; want %v", c.names, got, err, c.want)
		}
	}
	for _, name := range []string{"", "CAP_", "CAP_CAP_CHOWN", "CHMOD", "0", " CHOWN"} {
		if got, err := ParseCapabilities([]string{name}); err == nil {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestProgramPath: A sandbox finds its program as execvp(3) does, also in a root where a layer has
// removed a file.
func TestProgramPath(t *testing.T) {
	root := fretest.Rootfs(t)
	err := errors.Join(
		os.MkdirAll(filepath.Join(root, "dir/prog"), 0o755), os.MkdirAll(filepath.Join(root, "plain"), 0o755),
		os.WriteFile(filepath.Join(root, "plain/prog"), nil, 0o644), os.WriteFile(filepath.Join(root, "plain/only"), nil, 0o644),
		os.MkdirAll(filepath.Join(root, "taken"), 0o755), os.WriteFile(filepath.Join(root, "taken/prog"), []byte("x"), 0o755),
		os.Symlink("/bin/prog", filepath.Join(root, "plain/link")))
	if err != nil {
		t.Fatal(err)
	}
	for name, parked := range map[string]int{"by the spawner": -1, "by a parked sandbox": 0} {
		t.Run(name, func(t *testing.T) {
			h := openHost(t, func(c *Config) { c.Parked = parked })
			layer := &Scratch{Dir: t.TempDir()}
			spec := container(root)
			spec.Scratch = layer
			order, s := orders(t, h, spec)
			if got := order("remove /taken/prog"); got != "ok" {
				t.Fatal(got)
			}
			s.Kill()
			<-s.Done()
			for _, c := range []struct {
				env, program string
				want         error
			}{
				{"PATH=/bin", "prog", nil},
				{"PATH=/missing:/dir:/plain:/plain/prog:/taken:/bin", "prog", nil},
				{"PATH=/plain", "link", nil},
				{"PATH=/missing:", "prog", nil}, // the working directory
				{"PATH=", "prog", nil},
				{"A=1", "./prog", nil},
				{"A=1", "../bin/prog", nil},
				{"PATH=" + strings.Repeat("x", 5000) + ":/bin", "prog", nil},
				{"A=1", "prog", nil}, // the default path of execvp
				{"PATH=/bin", "missing", unix.ENOENT},
				{"PATH=/taken", "prog", unix.ENOENT},
				{"PATH=/plain:/bin", "only", unix.EACCES},
				{"PATH=/bin", "bin/prog", unix.ENOENT},
			} {
				spec := container(root)
				spec.Scratch, spec.Dir, spec.Env, spec.Args = layer, "/bin", []string{c.env}, []string{c.program, "args", "found"}
				if c.want == nil {
					if out, status := run(t, h, spec); out != "found\n" {
						t.Errorf("%.40s: %s: %q, %+v", c.env, c.program, out, status)
					}
					continue
				}
				var failed *StartError
				if _, err := h.Start(t.Context(), spec); !errors.Is(err, c.want) || !errors.As(err, &failed) || failed.Step != StepExec || failed.Detail != c.program {
					t.Errorf("%s: %s: %v, want %v", c.env, c.program, err, c.want)
				}
			}
		})
	}
}

// TestTerminal: The terminal is the controlling terminal for each kind of start, and reveals no
// name of the host.
func TestTerminal(t *testing.T) {
	for name, parked := range map[string]int{"by the spawner": -1, "by a parked sandbox": 0} {
		t.Run(name, func(t *testing.T) {
			h := openHost(t, func(c *Config) { c.Parked = parked })
			master, terminal, err := OpenTerminal(tenant.HostBase)
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			if err := ResizeTerminal(master, 30, 100); err != nil {
				t.Fatal(err)
			}
			spec := container(fretest.Rootfs(t))
			spec.TTY, spec.Stdin, spec.Stdout, spec.Stderr = true, terminal, terminal, terminal
			spec.Args = []string{"/bin/prog", "orders"}
			s, err := h.Start(t.Context(), spec)
			_ = terminal.Close()
			if err != nil {
				t.Fatal(err)
			}
			if err := master.SetReadDeadline(time.Now().Add(within)); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"readlink /proc/self/fd/0", "write /dev/tty controlling", "winsize", "stat /proc/self/fd/0", "exit 0"} {
				if _, err := master.WriteString(command + "\n"); err != nil {
					t.Fatal(err)
				}
			}
			said, err := io.ReadAll(master)
			if !errors.Is(err, unix.EIO) {
				t.Errorf("terminal ended with %v, want EIO", err)
			}
			for _, want := range []string{"\n/0\r\n", "controlling> ok\r\n", "\n30 100\r\n", "\n20620 0 0\r\n"} {
				if !strings.Contains(string(said), want) {
					t.Errorf("terminal lacks %q:\n%q", want, said)
				}
			}
			if status := wait(t, s); status.Code != 0 {
				t.Errorf("ended with %+v", status)
			}
		})
	}
}
