package container

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// account is the user of a container.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary
	home     string
}

// maxAccounts bounds the bytes read of an image's passwd and group files.
const maxAccounts = 1 << 20

// lookUp finds a user as container images name it: a name or an id, optionally followed by ":"
// and a group's name or id; "" is root. It looks names up in passwd(5) and group(5); an unknown
// id is taken as it is. further are groups added to the supplementary ones. An unknown name is an
// *template.FieldError.
func lookUp(passwd, group io.Reader, user string, further []string) (account, error) {
	name, groupName, grouped := strings.Cut(user, ":")
	a := account{home: "/"}
	id, numeric, err := parseID(cmp.Or(name, "0"))
	if err != nil {
		return a, &template.FieldError{Field: "user", Message: err.Error()}
	}
	a.uid = id
	found := false
	for f := range records(passwd, 7) {
		uid, ok, err := parseID(f[2])
		if err != nil || !ok || (numeric && uid != id) || (!numeric && f[0] != name) {
			continue
		}
		gid, ok, err := parseID(f[3])
		if err != nil || !ok {
			continue
		}
		a.uid, a.gid, a.home, name, found = uid, gid, cmp.Or(f[5], "/"), f[0], true
		break
	}
	if !found && !numeric {
		return a, &template.FieldError{Field: "user", Message: fmt.Sprintf("the image's /etc/passwd has no user %q: use a number", name)}
	}
	ids := map[string]uint32{}
	var member []uint32
	for f := range records(group, 4) {
		gid, ok, err := parseID(f[2])
		if err != nil || !ok {
			continue
		}
		if _, known := ids[f[0]]; !known {
			ids[f[0]] = gid
		}
		if found && slices.Contains(strings.Split(f[3], ","), name) {
			member = append(member, gid)
		}
	}
	groupOf := func(field, name string) (uint32, error) {
		gid, numeric, err := parseID(name)
		known := numeric
		if !numeric {
			gid, known = ids[name]
		}
		if err == nil && !known {
			err = fmt.Errorf("the image's /etc/group has no group %q: use a number", name)
		}
		if err != nil {
			err = &template.FieldError{Field: field, Message: err.Error()}
		}
		return gid, err
	}
	switch {
	case !grouped:
		a.groups = member[:min(len(member), sandbox.MaxGroups)]
	case groupName != "":
		if a.gid, err = groupOf("user", groupName); err != nil {
			return a, err
		}
	}
	for _, name := range further {
		gid, err := groupOf("groups", name)
		if err != nil {
			return a, err
		}
		if !slices.Contains(a.groups, gid) {
			a.groups = append(a.groups, gid)
		}
	}
	if len(a.groups) > sandbox.MaxGroups {
		return a, &template.FieldError{Field: "groups", Message: fmt.Sprintf("%d groups with the user's: at most %d", len(a.groups), sandbox.MaxGroups)}
	}
	return a, nil
}

// parseID parses a user or group id; ok is false for a name.
func parseID(s string) (id uint32, ok bool, err error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > store.MaxID {
		return 0, true, fmt.Errorf("%s is above %d, the highest id of a sandbox", s, store.MaxID)
	}
	return uint32(n), true, nil
}

// records yields the lines of passwd(5) or group(5) with the given number of fields.
func records(r io.Reader, fields int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		lines := bufio.NewScanner(io.LimitReader(r, maxAccounts))
		for lines.Scan() {
			if f := strings.Split(lines.Text(), ":"); len(f) == fields && f[0] != "" && !yield(f) {
				return
			}
		}
	}
}

// userOf looks a user up in an image's tree. A missing file counts as empty. A link is resolved
// inside the tree.
func userOf(rootfs, user string, groups []string) (account, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return account{}, &fs.PathError{Op: "open", Path: rootfs, Err: err}
	}
	defer unix.Close(root)
	open := func(name string) (io.ReadCloser, error) {
		fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return io.NopCloser(strings.NewReader("")), nil
		case err != nil:
			return nil, fmt.Errorf("look up user %q: %w", user, &fs.PathError{Op: "open", Path: name, Err: err})
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	passwd, err := open("etc/passwd")
	if err != nil {
		return account{}, err
	}
	defer passwd.Close()
	group, err := open("etc/group")
	if err != nil {
		return account{}, err
	}
	defer group.Close()
	return lookUp(passwd, group, user, groups)
}
