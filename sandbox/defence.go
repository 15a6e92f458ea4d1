package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/seccomp"
)

// Defence is a set of a sandbox's protections besides its namespaces.
type Defence uint32

// The defences. [Spec] itself selects limits and network.
const (
	DefenceSeccomp      Defence = 1 << iota // the system call filter
	DefenceLandlock                         // no signal to outside, no connection to abstract sockets outside
	DefenceCapabilities                     // no capabilities, not even over the tenant's own user namespace
	DefenceNoNewPrivs                       // execve grants nothing; required by the filter and by Landlock
	DefenceNoSuid                           // nosuid and nodev on every mount
	DefenceReadOnlyRoot                     // a read-only root and /dev
	DefenceProcSubset                       // /proc shows only processes
	DefenceKeyring                          // a session keyring of its own
)

// landlockScopes is the first ABI of Landlock with all features that FRE uses.
const landlockScopes = 6

var defenceNames = [...]string{
	"seccomp", "landlock", "capabilities", "no_new_privs", "nosuid", "read-only root", "proc subset", "keyring",
}

// Defences returns the names of the defences in force in every sandbox of this host, in the
// order of the constants. Landlock is absent if the kernel lacks it (see [Probe]).
func (h *Host) Defences() []string {
	names := make([]string, 0, len(defenceNames))
	for i, name := range defenceNames {
		if Defence(1<<i) != DefenceLandlock || h.landlock.Load() >= landlockScopes {
			names = append(names, name)
		}
	}
	return names
}

// Defences returns the names of the defences in force in a sandbox of spec, as [Host.Defences]
// does. A sandbox with capabilities or with a writable root lacks the respective defence.
func (spec *Spec) Defences(h *Host) []string {
	without := map[string]bool{
		defenceNames[bits.TrailingZeros32(uint32(DefenceCapabilities))]: spec.Capabilities != 0 && spec.User.UID == 0,
		defenceNames[bits.TrailingZeros32(uint32(DefenceReadOnlyRoot))]: spec.Scratch != nil && !spec.Scratch.ReadOnly,
	}
	return slices.DeleteFunc(h.Defences(), func(name string) bool { return without[name] })
}

// flags returns the flags of the START message that switch off the defences in d.
func (d Defence) flags() uint32 {
	var flags uint32
	for _, bit := range []struct {
		defence Defence
		flag    uint32
	}{
		{DefenceLandlock, flagWithoutLandlock},
		{DefenceCapabilities, flagWithoutCapabilities},
		{DefenceNoNewPrivs, flagWithoutNoNewPrivs | flagWithoutLandlock},
		{DefenceProcSubset, flagWithoutProcSubset},
		{DefenceKeyring, flagWithoutKeyring},
	} {
		if d&bit.defence != 0 {
			flags |= bit.flag
		}
	}
	return flags
}

// filter returns the index of the sandbox's system call filter, -1 for none.
func (spec *Spec) filter() int16 {
	if spec.Without&(DefenceSeccomp|DefenceNoNewPrivs) != 0 {
		return -1
	}
	if spec.Forks > 0 {
		return int16(seccomp.ForkServer)
	}
	return int16(spec.Policy)
}

// mountAttr removes from the attributes of a mount the defences in spec.Without.
func (spec *Spec) mountAttr(attr uint64) uint64 {
	if spec.Without&DefenceNoSuid != 0 {
		attr &^= unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	}
	if spec.Without&DefenceReadOnlyRoot != 0 {
		attr &^= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

// newFilters encodes the filters, one for each policy, in the format of wire.h. The result is a
// sealed memory file; the caller closes the file.
func newFilters() (*os.File, error) {
	policies := seccomp.Policies()
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(policies)))
	for _, policy := range policies {
		program, err := policy.Program()
		if err != nil {
			return nil, err
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(len(program)))
		for _, in := range program {
			b = binary.NativeEndian.AppendUint16(b, in.Code)
			b = append(b, in.Jt, in.Jf)
			b = binary.NativeEndian.AppendUint32(b, in.K)
		}
	}
	return sealedFile("fre-filters", b)
}

// sealedFile returns b as a memory file that no process can change, not even a process that
// finds the file through /proc. The caller closes the file.
func sealedFile(name string, b []byte) (_ *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.Write(b); err != nil {
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return f, nil
}
