package engine

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

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// account is who a container runs as.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary
	home     string
}

// maxAccounts bounds what is read of an image's lists of users and groups.
const maxAccounts = 1 << 20

// maxGroups is how many supplementary groups a sandbox can have.
const maxGroups = 16

// lookUp finds a user as ordinary images name one: a name or an id, with ":" and
// a group's name or id or without, "" for root. Names stand in passwd(5) and
// group(5); an id that does not is taken as it is. A user that is nowhere is an
// *image.FieldError.
func lookUp(passwd, group io.Reader, user string) (account, error) {
	name, groupName, grouped := strings.Cut(user, ":")
	a := account{home: "/"}
	id, numeric, err := parseID(cmp.Or(name, "0"))
	if err != nil {
		return a, err
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
		return a, &image.FieldError{Field: "user", Message: fmt.Sprintf("the image's /etc/passwd has no user %q: use a number", name)}
	}
	gid, numeric, err := parseID(cmp.Or(groupName, "0"))
	if err != nil {
		return a, err
	}
	known := numeric
	if grouped && numeric && groupName != "" {
		a.gid = gid
	}
	for f := range records(group, 4) {
		gid, ok, err := parseID(f[2])
		switch {
		case err != nil || !ok:
		case grouped && f[0] == groupName && !known:
			a.gid, known = gid, true
		case !grouped && found && len(a.groups) < maxGroups && slices.Contains(strings.Split(f[3], ","), name):
			a.groups = append(a.groups, gid)
		}
	}
	if !known {
		return a, &image.FieldError{Field: "user", Message: fmt.Sprintf("the image's /etc/group has no group %q: use a number", groupName)}
	}
	return a, nil
}

// parseID reads a user or group id; ok is false for a name.
func parseID(s string) (id uint32, ok bool, err error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > store.MaxID {
		return 0, true, &image.FieldError{Field: "user", Message: fmt.Sprintf("%s is above %d, the highest id of a sandbox", s, store.MaxID)}
	}
	return uint32(n), true, nil
}

// records yields the lines of passwd(5) and its kin that have so many fields.
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

// userOf looks a user up in an image's tree. A list that is not there is empty; one
// that is a link lies where the image means it to.
func userOf(rootfs, user string) (account, error) {
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
	return lookUp(passwd, group, user)
}
