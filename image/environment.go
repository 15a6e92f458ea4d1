package image

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// searchPath returns the PATH of a base environment.
func searchPath(env []string) string {
	return strings.TrimPrefix(cmp.Or(last(env, "PATH="), systemPath), "PATH=")
}

// last returns the last element of env with the prefix, or "".
func last(env []string, prefix string) string {
	for _, v := range slices.Backward(env) {
		if strings.HasPrefix(v, prefix) {
			return v
		}
	}
	return ""
}

// lookPath finds the program name along PATH in the root at rootfs, and returns its absolute path
// there. Errors: fs.ErrNotExist, with the PATH.
func lookPath(rootfs, name, search string) (string, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", rootfs, err)
	}
	defer unix.Close(root)
	for dir := range strings.SplitSeq(search, ":") {
		if p := path.Join(dir, name); path.IsAbs(p) && executable(root, p) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no program %s along %s: %w", name, search, fs.ErrNotExist)
}

// executable requires an executable file at name; symbolic links stay inside root (openat2(2),
// RESOLVE_IN_ROOT). Errors: an errno.
func executable(root int, name string) error {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return unix.EACCES
	}
	return nil
}

// withPath sets env's PATH to a base environment's, preceded by the directories that only the
// runtime has.
func withPath(env []string, base string) []string {
	theirs := strings.Split(base, ":")
	dirs := slices.DeleteFunc(strings.Split(searchPath(env), ":"), func(dir string) bool {
		return slices.Contains(theirs, dir) || slices.Contains(strings.Split(searchPath(nil), ":"), dir)
	})
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	return append(env, "PATH="+strings.Join(append(dirs, theirs...), ":"))
}

// under returns env's variables that over does not set, followed by over. Names with FRE_ are
// dropped from env.
func under(env, over []string) []string {
	set := map[string]bool{}
	for _, v := range over {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	var out []string
	for _, v := range env {
		if name, _, ok := strings.Cut(v, "="); ok && !set[name] && !strings.HasPrefix(name, "FRE_") {
			out = append(out, v)
		}
	}
	return append(out, over...)
}

// mergeEnv replaces the runtime's variables by the template's. A name must not occur twice: libc
// and the languages disagree about which value counts.
func mergeEnv(runtime []string, own map[string]string) []string {
	var out []string
	for _, v := range runtime {
		name, _, _ := strings.Cut(v, "=")
		if _, ok := own[name]; !ok {
			out = append(out, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		out = append(out, name+"="+own[name])
	}
	return out
}

// MergeEnv sets variables over a configuration's environment.
func MergeEnv(env []string, over map[string]string) []string { return mergeEnv(env, over) }

// withProgramDirs puts missing dirs at the front of PATH, if env has a PATH.
func withProgramDirs(env, dirs []string) []string {
	for i, v := range env {
		if at, ok := strings.CutPrefix(v, "PATH="); ok {
			have := strings.Split(at, ":")
			dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return slices.Contains(have, dir) })
			env[i] = "PATH=" + strings.Join(slices.Concat(dirs, have), ":")
		}
	}
	return env
}

// Program finds a program along the PATH of the base environment, and returns its absolute path in
// the base. Errors: fs.ErrNotExist.
func (s *Step) Program(name string) (string, error) { return lookPath(s.Rootfs, name, s.Path) }
