package sandbox

import (
	"encoding/binary"
	"math/bits"
	"os"
	"slices"

	"github.com/fre-engine/fre/sandbox/seccomp"
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
		if Defence(1<<i) != DefenceLandlock || h.spawners.landlock.Load() >= landlockScopes {
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
