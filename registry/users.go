package registry

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

// Users holds the users of a registry, with names and passwords. They come from a file with
// lines in the format of htpasswd -B; a third field allows a user to push:
//
//	# comment
//	alice:$2y$10$…:write
//	bob:$2y$10$…
//
// The file is read again after a change. An invalid file is logged and changes nothing.
type Users struct {
	log  *slog.Logger
	path string

	// checking bounds the number of passwords compared at once: each takes a CPU for tens of
	// milliseconds.
	checking chan struct{}
	key      [32]byte // of the digests in checked

	mu      sync.Mutex
	read    os.FileInfo
	byName  map[string]user
	checked map[[32]byte]bool // of valid credentials
	slowest []byte            // the slowest hash, for unknown names
}

type user struct {
	hash   []byte
	writer bool
}

const (
	maxUsersBytes = 16 << 20
	maxChecked    = 10000
)

// ReadUsers reads a file of users.
func ReadUsers(path string, log *slog.Logger) (*Users, error) {
	u := &Users{log: log, path: path, checking: make(chan struct{}, 2), checked: make(map[[32]byte]bool)}
	_, _ = rand.Read(u.key[:]) // never fails
	if err := u.reload(); err != nil {
		return nil, err
	}
	return u, nil
}

// isRead reports whether the last read file has not changed.
func (u *Users) isRead(info fs.FileInfo) bool {
	return u.read != nil && os.SameFile(info, u.read) && info.ModTime().Equal(u.read.ModTime()) && info.Size() == u.read.Size()
}

// reload reads the file if it has changed. The caller holds mu, or is the only user of u.
func (u *Users) reload() error {
	info, err := os.Stat(u.path)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	if u.isRead(info) {
		return nil
	}
	if info.Size() > maxUsersBytes {
		return fmt.Errorf("read users: %s has more than %d bytes", u.path, maxUsersBytes)
	}
	u.read = info // also for an invalid file: log it once
	src, err := os.ReadFile(u.path)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	byName, err := parseUsers(src)
	if err != nil {
		return fmt.Errorf("read users: %s: %w", u.path, err)
	}
	u.byName, u.slowest = byName, nil
	most := 0
	for _, one := range byName {
		if cost, err := bcrypt.Cost(one.hash); err == nil && cost > most {
			most, u.slowest = cost, one.hash
		}
	}
	clear(u.checked)
	return nil
}

// parseUser parses the fields NAME, HASH and, optionally, read or write.
func parseUser(fields []string) (user, error) {
	one := user{hash: []byte(fields[1])}
	if _, err := bcrypt.Cost(one.hash); err != nil {
		return one, fmt.Errorf("not a bcrypt hash: create the line with htpasswd -nB %s", fields[0])
	}
	if len(fields) == 3 {
		switch fields[2] {
		case "read":
		case "write":
			one.writer = true
		default:
			return one, fmt.Errorf("%q is neither read nor write", fields[2])
		}
	}
	return one, nil
}

// parseUsers parses the lines of a file of users.
func parseUsers(src []byte) (map[string]user, error) {
	users := make(map[string]user)
	lines := bufio.NewScanner(bytes.NewReader(src))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ":")
		if len(fields) < 2 || len(fields) > 3 || fields[0] == "" {
			return nil, fmt.Errorf("line %d is not NAME:HASH or NAME:HASH:write", n)
		}
		if _, ok := users[fields[0]]; ok {
			return nil, fmt.Errorf("line %d: %q has a line already", n, fields[0])
		}
		one, err := parseUser(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		users[fields[0]] = one
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(users) == 0 {
		return nil, errors.New("the file names no user")
	}
	return users, nil
}

// authenticate returns the user with the name and password of a request.
func (u *Users) authenticate(req *http.Request) (user, bool) {
	name, password, ok := req.BasicAuth()
	if !ok {
		return user{}, false
	}
	u.mu.Lock()
	if err := u.reload(); err != nil {
		u.log.ErrorContext(req.Context(), "users not read again", "error", err)
	}
	one, known := u.byName[name]
	if !known {
		one.hash = u.slowest // same response time, so attackers cannot find names
	}
	mac := hmac.New(sha256.New, u.key[:])
	_, _ = fmt.Fprintf(mac, "%q %q %q", name, password, one.hash)
	sum := [32]byte(mac.Sum(nil))
	checked := u.checked[sum]
	u.mu.Unlock()
	if checked {
		return one, true
	}
	select {
	case u.checking <- struct{}{}:
		defer func() { <-u.checking }()
	case <-req.Context().Done():
		return user{}, false
	}
	if bcrypt.CompareHashAndPassword(one.hash, []byte(password)) != nil || !known {
		return user{}, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.checked) >= maxChecked {
		clear(u.checked)
	}
	u.checked[sum] = true
	return one, true
}

// admit checks the credentials of a request.
func (u *Users) admit(w http.ResponseWriter, req *http.Request, reads bool) error {
	user, ok := u.authenticate(req)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Basic realm="FRE registry", charset="UTF-8"`)
		return errUnauthorized
	}
	if !reads && !user.writer {
		return errDenied
	}
	return nil
}
