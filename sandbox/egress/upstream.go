package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
)

// upstream holds the host's resolvers.
type upstream struct {
	fixed []netip.AddrPort // from the configuration

	mu   sync.Mutex
	seen fs.FileInfo // of the file from which list was read
	list []netip.AddrPort
}

const resolvConf = "/etc/resolv.conf"

// servers returns the resolvers. A changed /etc/resolv.conf is read again.
func (u *upstream) servers() ([]netip.AddrPort, error) {
	if len(u.fixed) > 0 {
		return u.fixed, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now, err := os.Stat(resolvConf)
	if err != nil {
		return nil, err
	}
	if u.seen == nil || !os.SameFile(u.seen, now) || u.seen.ModTime() != now.ModTime() || u.seen.Size() != now.Size() {
		b, err := os.ReadFile(resolvConf)
		if err != nil {
			return nil, err
		}
		u.seen, u.list = now, parseResolvConf(b)
	}
	if len(u.list) == 0 {
		return nil, errNoResolver
	}
	return u.list, nil
}

var errNoResolver = errors.New(resolvConf + " names no resolver: add a nameserver line, or list some under network.egress.resolvers")

// parseResolvConf returns the resolvers of a resolv.conf(5), at most three as in the C library.
func parseResolvConf(b []byte) []netip.AddrPort {
	var list []netip.AddrPort
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "nameserver" || len(list) == 3 {
			continue
		}
		if a, err := netip.ParseAddr(string(fields[1])); err == nil {
			list = append(list, netip.AddrPortFrom(a, 53))
		}
	}
	return list
}

// Resolvers returns the host's resolvers, which would answer sandboxes by default.
func Resolvers() ([]netip.AddrPort, error) {
	var u upstream
	list, err := u.servers()
	if err != nil {
		return nil, fmt.Errorf("find resolvers: %w", err)
	}
	return list, nil
}
