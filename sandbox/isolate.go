package sandbox

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// isolatedEnv holds the name of the mount namespace that Isolate made for this process. A value
// inherited from another process does not match.
const isolatedEnv = "FRE_MOUNTNS"

// Isolate moves the whole program into a mount namespace of its own, by a second run of the
// program inside. No mount of the engine shows on the host, and all disappear with the engine.
// Later mounts of the host still appear inside. Call Isolate first in main: Isolate returns nil
// in the second run; in the first run Isolate returns only after an error.
func Isolate() error {
	const self = "/proc/self/ns/mnt"
	if mine := os.Getenv(isolatedEnv); mine != "" {
		if now, err := os.Readlink(self); err == nil && now == mine {
			return os.Unsetenv(isolatedEnv)
		}
	}
	// Only this thread changes; execve makes this thread the program's only one.
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
