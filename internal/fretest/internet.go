package fretest

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// ownNetwork is set in a child process that runs a test in a network namespace of its own.
const ownNetwork = "FRE_TEST_OWN_NETWORK"

// OwnNetwork runs the calling test or benchmark again, in a child process with a new network
// namespace that stands for the host's, and reports how the child ended. It returns true in the
// child. In the parent it returns false, and the caller returns at once.
func OwnNetwork(t testing.TB) bool {
	t.Helper()
	RequireRoot(t)
	if os.Getenv(ownNetwork) != "" {
		return true
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	run := func(args ...string) []byte {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), ownNetwork+"=1")
		// A new mount namespace too: mounts by tests of other packages would look like leaks.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("in a network namespace of its own: %v\n%s", err, out)
		}
		return out
	}
	b, bench := t.(*testing.B)
	if !bench {
		run("-test.run="+pattern, "-test.v")
		return false
	}
	for first := true; b.Loop(); first = false { // calls the benchmark function only once
		if first {
			b.Logf("%s", run("-test.run=^$", "-test.bench="+pattern, "-test.benchtime="+flag.Lookup("test.benchtime").Value.String()))
		}
	}
	return false
}

// The addresses of [Internet]. Addresses of the documentation ranges stand for public addresses.
var (
	Upstream  = netip.MustParseAddr("198.51.100.10") // public.test
	Other     = netip.MustParseAddr("198.51.100.11") // other.test, deep.sub.wild.test
	Upstream6 = netip.MustParseAddr("2001:db8:1::10")
	Resolver  = netip.MustParseAddrPort("198.51.100.53:53")
	Metadata  = netip.MustParseAddr("169.254.169.254")
	Private   = netip.MustParseAddr("10.9.8.7")
	HostAddr  = netip.MustParseAddr("203.0.113.2") // the host's, towards the internet
	HostAddr6 = netip.MustParseAddr("2001:db8::2")
)

// zone holds the records of [Resolver]. evil.test tries to lead clients to addresses that a filter
// forbids.
var zone = map[string][]string{
	"public.test":        {Upstream.String(), Upstream6.String()},
	"alias.test":         {"public.test"},
	"other.test":         {Other.String()},
	"deep.sub.wild.test": {Other.String()},
	"evil.test":          {Metadata.String(), Private.String(), Upstream.String(), "fd00:ec2::254"},
	"long.test":          {"text"},
}

// ports lists the TCP ports at which each address answers with the address of the caller. UDP is
// answered at the first port only.
var ports = []uint16{80, 443}

// Internet puts a network behind the calling program's namespace, which must come from OwnNetwork:
// eth0 with a default route, forwarding of packets, and servers at the addresses above. The network
// routes back only to eth0's own addresses, and disappears when the test ends.
func Internet(t testing.TB) {
	t.Helper()
	if os.Getenv(ownNetwork) == "" {
		t.Fatal("Internet is for the child of OwnNetwork")
	}
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	w := &world{}
	t.Cleanup(w.close)
	// Only the sockets keep the namespace alive.
	if err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "host"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(host.Fd()))}); err != nil {
			return fmt.Errorf("add link: %w", err)
		}
		addrs := []netip.Addr{Upstream, Other, Resolver.Addr(), Metadata, Private, Upstream6, netip.MustParseAddr("fd00:ec2::254")}
		if err := configure("lo", addrs...); err != nil {
			return err
		}
		if err := configure("host", netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")); err != nil {
			return err
		}
		return w.serve()
	}); err != nil {
		t.Fatal(err)
	}
	if err := configure("lo"); err != nil {
		t.Fatal(err)
	}
	if err := configure("eth0", HostAddr, HostAddr6); err != nil {
		t.Fatal(err)
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(eth0) })
	for _, gateway := range []string{"203.0.113.1", "2001:db8::1"} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(gateway)}); err != nil {
			t.Fatal(err)
		}
	}
	// The least set of sysctls for a host that forwards packets.
	for _, setting := range []string{"ipv4/ip_forward=0", "ipv4/conf/eth0/forwarding=1", "ipv6/conf/all/forwarding=1"} {
		name, value, _ := strings.Cut(setting, "=")
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// configure brings a link up and adds addresses with prefixes of 24 and 64 bits; lo's addresses get
// full-length prefixes.
func configure(name string, addrs ...netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range addrs {
		bits := a.BitLen()
		if name != "lo" {
			bits = map[bool]int{true: 24, false: 64}[a.Is4()]
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	return nil
}

func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends together with its namespace
		done <- f()
	}()
	return <-done
}

// world holds the servers behind eth0.
type world struct {
	work    sync.WaitGroup
	closers []io.Closer
}

func (w *world) close() {
	for _, c := range w.closers {
		_ = c.Close()
	}
	w.work.Wait()
}

func (w *world) serve() error {
	for _, port := range ports {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: int(port)})
		if err != nil {
			return err
		}
		w.closers = append(w.closers, l)
		w.work.Go(func() { accept(l, func(c net.Conn) { _, _ = fmt.Fprintln(c, remote(c.RemoteAddr())) }) })
	}
	// One UDP socket for each address, because the reply's source must be the address that was
	// called.
	for _, a := range []netip.Addr{Upstream, Other, Upstream6, Metadata, Private} {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, ports[0])))
		if err != nil {
			return err
		}
		w.closers = append(w.closers, c)
		w.work.Go(func() { datagrams(c, func([]byte, string) []byte { return nil }) })
	}
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(Resolver))
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(Resolver))
	if err != nil {
		return err
	}
	w.closers = append(w.closers, u, l)
	w.work.Go(func() { datagrams(u, func(msg []byte, _ string) []byte { return lookUp(msg, 512) }) })
	w.work.Go(func() {
		accept(l, func(c net.Conn) {
			buf := make([]byte, 2048)
			n, _ := c.Read(buf)
			if n < 2 {
				return
			}
			reply := lookUp(buf[2:n], 1<<16)
			_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
		})
	})
	return nil
}

func remote(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	return host
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			serve(c)
			_ = c.Close()
		}
	}
}

// datagrams answers each datagram with reply's result, or with the sender's address if reply
// returns nil.
func datagrams(c *net.UDPConn, reply func(msg []byte, from string) []byte) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		out := reply(buf[:n], remote(from))
		if out == nil {
			out = []byte(remote(from) + "\n")
		}
		_, _ = c.WriteToUDP(out, from)
	}
}

// lookUp answers a DNS query from zone.
func lookUp(msg []byte, limit int) []byte {
	var q, a dnsmessage.Message
	if q.Unpack(msg) != nil || len(q.Questions) != 1 {
		return nil
	}
	question := q.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	a.Header = dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}
	a.Questions = q.Questions
	header := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 60}
	records, ok := zone[name]
	if !ok {
		a.RCode = dnsmessage.RCodeNameError
	}
	for _, r := range records {
		if to, ok := zone[r]; ok {
			target := dnsmessage.MustNewName(r + ".")
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: target}})
			header.Name, records = target, to
		}
	}
	for _, r := range records {
		addr, err := netip.ParseAddr(r)
		switch {
		case err != nil && question.Type == dnsmessage.TypeTXT:
			for range 40 {
				a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.TXTResource{TXT: []string{strings.Repeat(r, 20)}}})
			}
		case err == nil && addr.Is4() && question.Type == dnsmessage.TypeA:
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case err == nil && addr.Is6() && question.Type == dnsmessage.TypeAAAA:
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	b, err := a.Pack()
	if err == nil && len(b) > limit {
		a.Answers, a.Truncated = nil, true
		b, err = a.Pack()
	}
	if err != nil {
		return nil
	}
	return b
}
