package sandbox

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// isolatedEnv names the mount namespace that Isolate made for this process, so
// that a value inherited from elsewhere is not mistaken for its own.
const isolatedEnv = "FRE_MOUNTNS"

// Isolate moves the whole program into a mount namespace of its own, by running
// it again in one: no mount of the engine's shows on the host, and all vanish
// with it. What the host mounts later still shows inside. Call it first thing
// in main: it returns nil in the second run, and otherwise only on errors.
func Isolate() error {
	const self = "/proc/self/ns/mnt"
	if mine := os.Getenv(isolatedEnv); mine != "" {
		if now, err := os.Readlink(self); err == nil && now == mine {
			return os.Unsetenv(isolatedEnv)
		}
	}
	// This thread alone changes; execve makes it the program's only one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	now, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	if err := os.Setenv(isolatedEnv, now); err != nil {
		return err
	}
	if err := unix.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("run again in own mount namespace: %w", err)
	}
	return nil
}
