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

// Defence is a set of what a sandbox has around it besides its namespaces.
type Defence uint32

// The defences. Limits and the network are chosen by [Spec] itself.
const (
	DefenceSeccomp      Defence = 1 << iota // the system call filter
	DefenceLandlock                         // no signal and no abstract socket reaches out of the sandbox
	DefenceCapabilities                     // none, not even over the tenant's own user namespace
	DefenceNoNewPrivs                       // execve grants nothing; without it neither filter nor Landlock can be had
	DefenceNoSuid                           // nosuid and nodev on every mount
	DefenceReadOnlyRoot                     // and a read-only /dev
	DefenceProcSubset                       // /proc shows processes alone
	DefenceKeyring                          // a session key ring of its own
)

// landlockScopes is the first of Landlock's ABIs that has what is used of it.
const landlockScopes = 6

var defenceNames = [...]string{
	"seccomp", "landlock", "capabilities", "no_new_privs", "nosuid", "read-only root", "proc subset", "keyring",
}

// Defences names what is in force in every sandbox of this host, in the order of
// the constants: Landlock is not where the kernel lacks it (see [Probe]).
func (h *Host) Defences() []string {
	names := make([]string, 0, len(defenceNames))
	for i, name := range defenceNames {
		if Defence(1<<i) != DefenceLandlock || h.landlock.Load() >= landlockScopes {
			names = append(names, name)
		}
	}
	return names
}

// Defences names what is in force in a sandbox of spec, as [Host.Defences] does: one
// with capabilities or a root of its own to write to goes without those two.
func (spec *Spec) Defences(h *Host) []string {
	without := map[string]bool{
		defenceNames[bits.TrailingZeros32(uint32(DefenceCapabilities))]: spec.Capabilities != 0 && spec.User.UID == 0,
		defenceNames[bits.TrailingZeros32(uint32(DefenceReadOnlyRoot))]: spec.Scratch != nil && !spec.Scratch.ReadOnly,
	}
	return slices.DeleteFunc(h.Defences(), func(name string) bool { return without[name] })
}

// flags are those of the START message.
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

// filter is the index of a sandbox's system call filter, -1 for none.
func (spec *Spec) filter() int16 {
	if spec.Without&(DefenceSeccomp|DefenceNoNewPrivs) != 0 {
		return -1
	}
	if spec.Forks > 0 {
		return int16(seccomp.ForkServer)
	}
	return int16(spec.Policy)
}

// mountAttr takes from a mount's attributes what spec goes without.
func (spec *Spec) mountAttr(attr uint64) uint64 {
	if spec.Without&DefenceNoSuid != 0 {
		attr &^= unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	}
	if spec.Without&DefenceReadOnlyRoot != 0 {
		attr &^= unix.MOUNT_ATTR_RDONLY
	}
	return attr
}

// newFilters writes the filters as wire.h says, one per policy, into a sealed
// memory file that the caller closes.
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

// sealedFile returns b as a memory file that no process can change, not even one
// that finds it through /proc. The caller closes it.
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
