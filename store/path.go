package store

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of Linux: PATH_MAX counts the closing NUL (linux/limits.h).
const (
	maxPath = 4095
	maxName = 255
)

// ErrPath is wrapped by every refusal of a path, name or link target.
var ErrPath = errors.New("invalid path")

// checkPath accepts a relative, slash-separated, clean path that ext4 and xfs store unchanged.
func checkPath(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("%w: empty", ErrPath)
	case len(p) > maxPath:
		return fmt.Errorf("%w: %.40q… is longer than %d bytes", ErrPath, p, maxPath)
	case strings.IndexByte(p, 0) >= 0:
		return fmt.Errorf("%w: %q holds a NUL byte", ErrPath, p)
	}
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case name == "" || name == "." || name == "..":
			return fmt.Errorf("%w: %q is not relative and clean", ErrPath, p)
		case len(name) > maxName:
			return fmt.Errorf("%w: %q has a name longer than %d bytes", ErrPath, p, maxName)
		}
	}
	return nil
}

// checkTarget accepts a target that symlink(2) accepts. It does not judge the destination: only
// sandboxes resolve it.
func checkTarget(p, target string) error {
	switch {
	case target == "" || len(target) > maxPath:
		return fmt.Errorf("%w: symlink %q has a target of %d bytes", ErrPath, p, len(target))
	case strings.IndexByte(target, 0) >= 0:
		return fmt.Errorf("%w: symlink %q has a target with a NUL byte: %q", ErrPath, p, target)
	}
	return nil
}

// parent returns the path without its last name, "" at the top.
func parent(p string) string {
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)]
}

// join returns p below prefix; prefix may be "".
func join(prefix, p string) string {
	if prefix == "" {
		return p
	}
	return prefix + "/" + p
}
