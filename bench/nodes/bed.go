package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/registry"
)

// within bounds every wait.
const within = 2 * time.Minute

// bed holds the parts that the nodes share: a bridge between their network namespaces, NATS in a
// separate process, and a registry in this process.
type bed struct {
	bin, dir string
	bridge   string
	subnet   string // first three numbers of the addresses
	nats     *testbed.Server
	conn     *nats.Conn
	stream   jetstream.JetStream
	registry string
	undo     []func() error // called in reverse order
}

// node is an engine with a network namespace and a share of its own.
type node struct {
	*bed
	*share
	name   string
	config testdaemon.Config
	api    *client.Client
	daemon *testdaemon.Daemon // nil: not running
}

// run runs a command of the system.
func run(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// later registers a function for close to call.
func (b *bed) later(undo func() error) { b.undo = append(b.undo, undo) }

// close calls the registered functions in reverse order.
func (b *bed) close() error {
	var errs []error
	for _, undo := range slices.Backward(b.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// openBed makes the shared parts. The caller closes the bed, also after an error.
func openBed(ctx context.Context, o options) (b *bed, err error) {
	id := os.Getpid()
	b = &bed{bridge: fmt.Sprintf("frn%d", id), subnet: fmt.Sprintf("10.%d.%d", 150+id/256%50, id%256)}
	if b.bin, err = filepath.Abs(o.bin); err != nil {
		return b, err
	}
	if b.dir, err = os.MkdirTemp("/var/tmp", "fre-bench-"); err != nil {
		return b, err
	}
	b.later(func() error { return os.RemoveAll(b.dir) })
	if err := run(ctx, "ip", "link", "add", b.bridge, "type", "bridge"); err != nil {
		return b, err
	}
	b.later(func() error { return run(context.WithoutCancel(ctx), "ip", "link", "del", b.bridge) })
	if err := run(ctx, "ip", "addr", "add", b.subnet+".1/24", "dev", b.bridge); err != nil {
		return b, err
	}
	if err := run(ctx, "ip", "link", "set", b.bridge, "up"); err != nil {
		return b, err
	}
	self, err := os.Executable()
	if err != nil {
		return b, err
	}
	args := []string{"-nats", filepath.Join(b.dir, "nats"), "-listen", b.subnet + ".1"}
	if o.sync {
		args = append(args, "-sync")
	}
	if b.nats, err = testbed.Serve(self, args...); err != nil {
		return b, err
	}
	b.later(b.nats.Stop)
	if b.conn, err = nats.Connect(b.nats.Addr); err != nil {
		return b, err
	}
	b.later(func() error { b.conn.Close(); return nil })
	if b.stream, err = jetstream.New(b.conn); err != nil {
		return b, err
	}
	return b, b.serveRegistry(ctx)
}

func (b *bed) serveRegistry(ctx context.Context) error {
	r, err := registry.Open(registry.Config{Dir: filepath.Join(b.dir, "registry"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	b.later(r.Close)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", b.subnet+".1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: r, ReadHeaderTimeout: within}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.later(func() error {
		err := s.Close()
		<-done
		return err
	})
	b.registry = l.Addr().String()
	return nil
}

// serveNATS runs a NATS server with JetStream in a child process, until standard input ends. With
// sync the server acknowledges a message after writing it to disk, like the engine's own server;
// without sync the server uses the default of NATS.
func serveNATS(_ context.Context, o options) error {
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: o.listen, Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: o.nats, SyncAlways: o.sync, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(within) {
		return errors.New("NATS takes no connections")
	}
	fmt.Println(s.ClientURL())
	_, _ = os.Stdin.Read(make([]byte, 1)) // stdin ends with the parent
	return nil
}

// add makes a node that does not run yet. The node's share has no limit yet.
func (b *bed) add(ctx context.Context, name string, number int) (n *node, err error) {
	n = &node{bed: b, name: name}
	if n.share, err = newShare(fmt.Sprintf("fre-bench-nodes-%d-%s", os.Getpid(), name)); err != nil {
		return nil, err
	}
	b.later(func() error { return n.remove(context.WithoutCancel(ctx)) })
	dir := filepath.Join(b.dir, name)
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o711); err != nil {
		return nil, err
	}
	// A process keeps the network namespace. A bind mount would keep it too, but every other program
	// on the machine would see the mount.
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL, Setpgid: true} // Ctrl-C ends the nodes first
	if err := holder.Start(); err != nil {
		return nil, err
	}
	b.later(func() error {
		err := holder.Process.Kill()
		_ = holder.Wait() // killed
		return err
	})
	netns := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	cable, address := fmt.Sprintf("%sv%d", b.bridge, number), fmt.Sprintf("%s.%d", b.subnet, number)
	for _, args := range [][]string{
		{"ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", netns},
		{"ip", "link", "set", cable, "master", b.bridge, "up"},
		{"nsenter", "--net=" + netns, "ip", "addr", "add", address + "/24", "dev", "eth0"},
		{"nsenter", "--net=" + netns, "ip", "link", "set", "eth0", "up"},
		{"nsenter", "--net=" + netns, "ip", "link", "set", "lo", "up"},
	} {
		if err := run(ctx, args...); err != nil {
			return nil, err
		}
	}
	wrapper, config := filepath.Join(dir, "fre"), filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("events: {nats: %q}\ncluster: {node: %s, registry: %s/fre}\nregistry: {insecure: [%q]}\n", b.nats.Addr, name, b.registry, b.registry)
	if err := errors.Join(os.WriteFile(wrapper, []byte(n.enter(netns, b.bin)), 0o755), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	n.config = testdaemon.Config{
		Bin: wrapper, State: state, Socket: filepath.Join(dir, "fre.sock"), Listen: address + ":8080", Args: []string{"--config", config, "--pool", "4", "--parked-sandboxes", "0"},
	}
	n.api = client.New(n.config.Socket)
	b.later(func() error { n.api.Close(); return nil })
	b.later(func() error { return n.stop(context.WithoutCancel(ctx)) })
	return n, nil
}

// start starts a node unless the node runs.
func (n *node) start(ctx context.Context) (err error) {
	if n.daemon != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	n.daemon, err = testdaemon.Start(ctx, n.config)
	return err
}

// stop ends a node if the node runs.
func (n *node) stop(ctx context.Context) error {
	if n.daemon == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d := n.daemon
	n.daemon = nil
	return d.Stop(ctx)
}

// with runs the first nodes and stops the others. It waits until the running nodes know each other
// and have all functions.
func with(ctx context.Context, nodes []*node, running int, functions ...string) error {
	for _, n := range nodes[running:] {
		if err := n.stop(ctx); err != nil {
			return err
		}
	}
	for _, n := range nodes[:running] {
		if err := n.start(ctx); err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, n := range nodes[:running] {
		err := testdaemon.Until(ctx, func() error {
			all, err := n.api.Nodes().List(ctx)
			if err != nil {
				return err
			}
			ready := 0
			for _, m := range all {
				if m.State == "ready" && len(m.Lacking) == 0 {
					ready++
				}
			}
			if ready != running || len(all) != running {
				return fmt.Errorf("%d of %d nodes are ready", ready, len(all))
			}
			for _, f := range functions {
				if _, err := n.api.Functions().Get(ctx, f); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	return nil
}
