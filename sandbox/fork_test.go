package sandbox

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestCanFork: Fork servers need Linux 6.17.
func TestCanFork(t *testing.T) {
	fretest.RequireRoot(t)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if err := CanFork(); (err == nil) != kernelAtLeast(release, "6.17") {
		t.Errorf("on Linux %s: %v", release, err)
	}
}

// TestForkLeave: The forks of a server are bounded, and Leave accepts only the server's new child.
// Package engine tests real forks, with a real bootstrap.
func TestForkLeave(t *testing.T) {
	if err := CanFork(); err != nil {
		t.Skipf("this kernel has no fork servers: %v", err)
	}
	h := openHost(t)
	server := prog(fretest.Rootfs(t), "sleep")
	server.Forks = 2
	sb, err := h.Start(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Kind() != StartSpawner {
		t.Errorf("a fork server was started in a parked sandbox: %s", sb.Kind())
	}
	other := server
	other.Forks = 0
	ordinary, err := h.Start(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ordinary.Fork(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("fork of an ordinary sandbox: %v", err)
	}
	for name, process := range map[string]*Sandbox{"the server itself": sb, "another sandbox": ordinary} {
		var leave [2]*Fork
		for i := range leave {
			if leave[i], err = sb.Fork(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := sb.Fork(); !errors.Is(err, ErrForks) {
			t.Errorf("a fork too many: %v", err)
		}
		leave[0].Cancel()
		pidfd, err := unix.FcntlInt(uintptr(process.pidfd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leave[1].Adopt(pidfd, ForkSpec{}); err == nil {
			t.Errorf("%s was adopted", name)
		}
		select {
		case <-process.Done():
			t.Errorf("%s was killed", name)
		default:
		}
	}
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	leave, err := sb.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leave.Adopt(pidfd, ForkSpec{}); err == nil {
		t.Error("the engine was adopted")
	}
	sb.Kill()
	<-sb.Done()
	if _, err := sb.Fork(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("fork of an ended server: %v", err)
	}

	for name, change := range map[string]func(*Spec){
		"less than none":  func(s *Spec) { s.Forks = -1 },
		"too many":        func(s *Spec) { s.Forks = maxForks + 1 },
		"with a network":  func(s *Spec) { s.Network = NetworkHost },
		"without a range": func(s *Spec) { s.User.HostBase = 0 },
	} {
		spec := server
		change(&spec)
		if _, err := h.Start(t.Context(), spec); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
