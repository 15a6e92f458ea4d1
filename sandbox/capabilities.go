package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Capabilities is a set of capabilities: bit n stands for capability number n
// (capabilities(7)). A sandbox's capabilities hold only over its own user namespace: over files
// whose owner is mapped, over its own processes, and for a change to another of its ids.
type Capabilities uint64

// ContainerCapabilities is the least set for ordinary images whose program starts as root:
// servers that own their files and then become another user, package managers. Compared with
// Docker's default set, ContainerCapabilities omits capabilities without effect in a user
// namespace that does not own the network namespace (NET_BIND_SERVICE, NET_RAW, AUDIT_WRITE,
// MKNOD), and SYS_CHROOT, which the system call filter refuses.
const ContainerCapabilities Capabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP

// capabilityNames are in the order of the numbers (linux/capability.h).
var capabilityNames = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// ParseCapabilities parses names as in capabilities(7), in upper or lower case, with or without
// CAP_. ALL is the set of all capabilities.
func ParseCapabilities(names []string) (Capabilities, error) {
	var set Capabilities
	for _, name := range names {
		short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		n := slices.Index(capabilityNames[:], short)
		switch {
		case short == "ALL":
			set |= 1<<len(capabilityNames) - 1
		case n >= 0:
			set |= 1 << n
		default:
			return 0, fmt.Errorf("%q is no capability", name)
		}
	}
	return set, nil
}

// String lists the names.
func (c Capabilities) String() string {
	var names []string
	for n, name := range capabilityNames {
		if c&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
