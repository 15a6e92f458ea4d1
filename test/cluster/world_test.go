// Package cluster_test runs three engines on one machine, each in a network namespace of its own,
// with a NATS cluster of three servers and a registry.
package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/registry"
	"github.com/fre-engine/fre/template"
)

// within bounds the waits of a test; no measurement depends on it.
const within = 5 * time.Minute

// deadline is the time limit of the functions.
const deadline = 20 * time.Second

// world is the nodes and their shared services.
type world struct {
	t        *testing.T
	bin      string // the program of new nodes
	dir      string
	bridge   string
	subnet   string // the first three numbers of the addresses
	servers  []*natsserver.Server
	registry string
	client   *http.Client
	nodes    []*node
	keyFile  string // cluster.key_file of new nodes; extra is further configuration
	extra    string
}

type node struct {
	*testdaemon.Daemon
	w      *world
	name   string
	netns  string
	cable  string // the bridge's end of the node's cable
	config testdaemon.Config
	api    *client.Client
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// undo runs a command when the test ends.
func undo(t testing.TB, args ...string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	})
}

// keepNamed restores the directory of named network namespaces when the test ends: the first ip
// netns add mounts it, and ip never unmounts it.
func keepNamed(t *testing.T) {
	t.Helper()
	const dir = "/run/netns"
	mounts := func() bool {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(b), " "+dir+" ")
	}
	_, err := os.Stat(dir)
	was, existed := mounts(), err == nil
	t.Cleanup(func() {
		if !was && mounts() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}
		if !existed {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

func newWorld(t *testing.T) *world {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	id := os.Getpid()
	w := &world{
		t: t, bin: daemontest.Bin(t), dir: daemontest.Dir(t), bridge: fmt.Sprintf("frb%d", id), subnet: fmt.Sprintf("10.%d.%d", 200+id>>8%50, id%256),
		client: &http.Client{Timeout: within, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	t.Cleanup(w.client.CloseIdleConnections)
	keepNamed(t)
	run(t, "ip", "link", "add", w.bridge, "type", "bridge")
	undo(t, "ip", "link", "del", w.bridge)
	run(t, "ip", "addr", "add", w.subnet+".1/24", "dev", w.bridge)
	run(t, "ip", "link", "set", w.bridge, "up")
	w.startNATS(t)
	w.startRegistry(t)
	return w
}

// startNATS runs three servers as one cluster.
func (w *world) startNATS(t *testing.T) {
	t.Helper()
	// JetStream forms a cluster only if each server knows the routes at its start.
	var routes []*url.URL
	for range 3 {
		address, err := testdaemon.FreeAddressOf(w.subnet + ".1")
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, &url.URL{Scheme: "nats", Host: address})
	}
	for i, route := range routes {
		port, err := strconv.Atoi(route.Port())
		if err != nil {
			t.Fatal(err)
		}
		s, err := natsserver.NewServer(&natsserver.Options{
			ServerName: fmt.Sprintf("s%d", i), Host: w.subnet + ".1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: filepath.Join(w.dir, "nats", fmt.Sprint(i)), NoSigs: true, NoLog: true,
			Cluster: natsserver.ClusterOpts{Name: "fre", Host: w.subnet + ".1", Port: port}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		w.servers = append(w.servers, s)
	}
	w.until(t, "NATS has a leader", func() error {
		for _, s := range w.servers {
			if !s.ReadyForConnections(time.Second) {
				return fmt.Errorf("%s takes no connections", s.Name())
			}
		}
		if !slices.ContainsFunc(w.servers, (*natsserver.Server).JetStreamIsLeader) {
			return errors.New("there is none")
		}
		return nil
	})
}

func (w *world) startRegistry(t *testing.T) {
	t.Helper()
	r, err := registry.Open(registry.Config{Dir: filepath.Join(w.dir, "registry"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", w.subnet+".1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: r, ReadHeaderTimeout: within}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	w.registry = l.Addr().String()
}

func (w *world) until(t *testing.T, what string, is func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := testdaemon.Until(ctx, is); err != nil {
		t.Fatalf("it does not come: %s: %v", what, err)
	}
}

// functions returns the functions of the tests: fn answers with its input, slow takes
// /wait?DURATION.
func functions(t *testing.T) []testdaemon.Function {
	t.Helper()
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	config := image.Config{
		Args: []string{"/function/program", "function"}, Instances: template.Instances{Max: 2}, Resources: template.Resources{Timeout: deadline},
		Events: &template.Events{Retries: 100, Backoff: 10 * time.Millisecond, Priority: "normal", MaxQueue: 100_000, Results: time.Hour},
	}
	slow := config
	slow.Protocol = image.ProtocolStdio
	return []testdaemon.Function{{Name: "fn", Program: program, Config: config}, {Name: "slow", Program: program, Config: slow}}
}

// add makes a node with a network namespace of its own and starts the node.
func (w *world) add(t *testing.T, name string, images ...testdaemon.Function) *node {
	t.Helper()
	number := len(w.nodes) + 2
	n := &node{w: w, name: name, netns: fmt.Sprintf("%s-%d", w.bridge, number), cable: fmt.Sprintf("%sv%d", w.bridge, number)}
	address := fmt.Sprintf("%s.%d", w.subnet, number)
	run(t, "ip", "netns", "add", n.netns)
	undo(t, "ip", "netns", "del", n.netns)
	run(t, "ip", "link", "add", n.cable, "type", "veth", "peer", "name", "eth0", "netns", n.netns)
	undo(t, "ip", "link", "del", n.cable) // the kernel would remove the link only some time after the namespace
	run(t, "ip", "link", "set", n.cable, "master", w.bridge, "up")
	run(t, "ip", "-n", n.netns, "addr", "add", address+"/24", "dev", "eth0")
	run(t, "ip", "-n", n.netns, "link", "set", "eth0", "up")
	run(t, "ip", "-n", n.netns, "link", "set", "lo", "up")
	dir := filepath.Join(w.dir, fmt.Sprint(number))
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o711); err != nil {
		t.Fatal(err)
	}
	if len(images) > 0 {
		if err := testdaemon.PutImages(t.Context(), state, images...); err != nil {
			t.Fatal(err)
		}
	}
	n.config.Bin = filepath.Join(dir, "fre")
	n.install(t, w.bin)
	var urls []string
	for _, s := range w.servers {
		urls = append(urls, s.ClientURL())
	}
	config := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("events: {nats: %q, replicas: 3}\ncluster: {node: %s, registry: %s/fre, key_file: %q}\nregistry: {insecure: [%q]}\n%s", strings.Join(urls, ","), name, w.registry, w.keyFile, w.registry, w.extra)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.config = testdaemon.Config{
		Bin: n.config.Bin, State: state, Socket: filepath.Join(dir, "fre.sock"), Listen: address + ":8080", Args: []string{"--config", config, "--pool", "4", "--parked-sandboxes", "0"}, Log: t.Output(),
	}
	n.start()
	w.nodes = append(w.nodes, n)
	return n
}

// install makes the node's next start run a program in the node's network namespace.
func (n *node) install(t *testing.T, program string) {
	t.Helper()
	// ip netns exec would hide the cgroups.
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s %s \"$@\"\n", n.netns, program)
	if err := os.WriteFile(n.config.Bin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// start starts a node; the end of the test stops it.
func (n *node) start() {
	t := n.w.t
	t.Helper()
	n.Daemon = daemontest.Start(t, n.config)
	d := n.Daemon
	n.api = client.New(d.Socket())
	t.Cleanup(func() {
		n.api.Close()
		select {
		case <-d.Done(): // the test has ended the node
		default:
			daemontest.Stop(t, d)
		}
	})
}

// sees waits until the node's list of nodes has the given states, as NAME=STATE.
func (n *node) sees(t *testing.T, states ...string) {
	t.Helper()
	n.w.until(t, n.name+" sees "+strings.Join(states, " "), func() error {
		all, err := n.api.Nodes().List(t.Context())
		if err != nil {
			return err
		}
		var got []string
		for _, m := range all {
			got = append(got, m.Name+"="+m.State)
		}
		if !slices.Equal(got, states) {
			return fmt.Errorf("it sees %v", got)
		}
		return nil
	})
}

// has waits until the node has a function's revision.
func (n *node) has(t *testing.T, function string, revision int) {
	t.Helper()
	n.w.until(t, fmt.Sprintf("%s has revision %d of %s", n.name, revision, function), func() error {
		f, err := n.api.Functions().Get(t.Context(), function)
		if err != nil {
			return err
		}
		if f.Revision != revision {
			return fmt.Errorf("it has revision %d", f.Revision)
		}
		return nil
	})
}

func (n *node) cli(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.CLI(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// call sends an event to a function and returns the answer.
func (n *node) call(t *testing.T, path, body string) (status int, answer string, header http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL(path), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// publish sends an asynchronous event and returns its id, or "" if the node is dead or refuses.
func (n *node) publish(ctx context.Context, path, body string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.URL("/async-function/"+path), strings.NewReader(body))
	if err != nil {
		return ""
	}
	resp, err := n.w.client.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var accepted struct{ ID string }
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusAccepted || json.NewDecoder(bytes.NewReader(b)).Decode(&accepted) != nil {
		return ""
	}
	return accepted.ID
}

// kill ends a node as the loss of its machine would.
func (n *node) kill() {
	n.Kill()
	n.w.client.CloseIdleConnections()
}

// cut disconnects the node's cable, and mend connects it again.
func (n *node) cut(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "set", n.cable, "down")
}

func (n *node) mend(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "set", n.cable, "up")
}

// done waits until all events have ended well, and returns the number of attempts.
func (n *node) done(t *testing.T, ids map[string]bool) (attempts int) {
	t.Helper()
	left := map[string]bool{}
	for id := range ids {
		left[id] = true
	}
	look := time.NewTicker(300 * time.Millisecond) // each look lists a thousand events
	defer look.Stop()
	n.w.until(t, "all events have run", func() error {
		<-look.C
		all, err := n.api.Queue().List(t.Context(), client.QueueFilter{States: []string{"done", "dead"}, Limit: 100_000})
		if err != nil {
			return err
		}
		for _, e := range all {
			if e.State == "dead" {
				t.Fatalf("event %s is dead: %s", e.ID, e.Error)
			}
			if left[e.ID] {
				attempts += e.Attempts
				delete(left, e.ID)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%d of %d have not", len(left), len(ids))
		}
		return nil
	})
	return attempts
}
