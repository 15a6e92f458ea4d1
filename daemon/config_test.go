package daemon

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox/egress"
)

func TestReadConfig(t *testing.T) {
	page, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, documented, _ := strings.Cut(string(page), "```yaml\n")
	documented, _, _ = strings.Cut(documented, "```")
	tests := []struct {
		name, src, wrong string
		want             []debian.Source
	}{
		{name: "as documented", src: documented, want: []debian.Source{{
			URI: "http://debian.example.org/debian", Suite: "bookworm", Components: []string{"main"},
			Keyrings: []string{"/usr/share/keyrings/debian-archive-keyring.gpg"},
		}}},
		{name: "unknown key", src: "packages: {cargo: {}}\n", wrong: "cargo"},
		{name: "unknown key inside", src: "packages: {pip: {mirror: x}}\n", wrong: "mirror"},
		{name: "parked interpreters of what size", src: "parked_interpreters: {memory: much}\n", wrong: "parked_interpreters.memory"},
		{name: "no memory for parked interpreters", src: "parked_interpreters: {memory: 0}\n", wrong: "parked_interpreters.memory"},
		{name: "negative parked interpreters", src: "parked_interpreters: {max: -1}\n", wrong: "parked_interpreters.max"},
		{name: "fewer parked interpreters than ready", src: "parked_interpreters: {ready: 3, max: 2}\n", wrong: "parked_interpreters.ready"},
		{name: "both names of a key", src: "shells: {max: 2}\nparked_interpreters: {max: 2}\n", wrong: "shells is the old name of parked_interpreters: remove shells"},
		{name: "work of what size", src: "work: {limit: much}\n", wrong: "work.limit"},
		{name: "revisions below none", src: "revisions: -1\n", wrong: "revisions: -1 is not from 0"},
		{name: "no work", src: "work: {tenants: {a: 1KiB}}\n", wrong: "work.tenants.a"},
		{name: "no keyring", src: "packages: {debian: [{uri: http://a, suite: b, components: [c]}]}\n", wrong: "keyring"},
		{name: "insecure registry is a URL", src: "registry: {insecure: ['http://host']}\n", wrong: "registry.insecure[0]"},
		{name: "registry without an address", src: "registry: {serve: {dir: /x}}\n", wrong: "registry.serve.listen"},
		{name: "registry that collects sometimes", src: "registry: {serve: {listen: ':1', gc: {grace: short}}}\n", wrong: "registry.serve.gc.grace"},
		{name: "bad image size", src: "images: {max_size: much}\n", wrong: "images.max_size"},
		{name: "fewer files than none", src: "images: {max_files: -1}\n", wrong: "images.max_files"},
		{name: "negative ratio", src: "images: {max_ratio: -1}\n", wrong: "images.max_ratio"},
		{name: "lent to no function", src: "network: {lend_connections: [clock]}\n", wrong: `network.lend_connections[0]: "clock" is not a function as TENANT/NAME`},
		{name: "bad private range", src: "network: {allow_private: [10.1.2.3/16]}\n", wrong: "network.allow_private[0]"},
		{name: "bad subnet", src: "network: {egress: {subnet: 10.0.0.0/30}}\n", wrong: "network.egress.subnet"},
		{name: "no memory for bodies", src: "buffers: {memory: 1MiB}\n", wrong: "buffers.memory"},
		{name: "more free than there is", src: "overload: {min_free: 90}\n", wrong: "overload.min_free"},
		{name: "a wait of what", src: "overload: {slow_wait: long}\n", wrong: "overload.slow_wait"},
		{name: "probes without end", src: "overload: {probe: 0s}\n", wrong: "overload.probe"},
		{name: "Lambda's API nowhere", src: "lambda: {region: us-east-1}\n", wrong: "lambda.listen"},
		{name: "a region of what", src: "lambda: {listen: '127.0.0.1:9001', region: here}\n", wrong: "lambda.region"},
		{name: "unsigned for whoever comes", src: "lambda: {listen: '0.0.0.0:9001', unsigned: default}\n", wrong: "lambda.unsigned"},
		{name: "unsigned for no tenant", src: "lambda: {listen: '127.0.0.1:9001', unsigned: A}\n", wrong: "lambda.unsigned"},
		{name: "a builder without a secret", src: "openfaas: {builders: [{tenant: acme}]}\n", wrong: "openfaas.builders[0].secret_file: no file is named"},
		{name: "a builder whose secret is short", src: "openfaas: {builders: [{secret_file: /proc/sys/kernel/ostype}]}\n", wrong: "openfaas.builders[0].secret_file: less than 16 bytes"},
		{name: "builders of one tenant", src: "openfaas: {builders: [{secret_file: /proc/version}, {tenant: default, secret_file: /proc/version}]}\n", wrong: "openfaas.builders[1].tenant"},
		{name: "contexts of what size", src: "openfaas: {max_context: 1KiB}\n", wrong: "openfaas.max_context"},
		{name: "credentials for no cluster", src: "events: {credentials: /x}\n", wrong: "events.credentials"},
		{name: "a key somewhere", src: "events: {nats: 'nats://a'}\ncluster: {node: a, registry: r.org/fre, key_file: k}\n", wrong: "cluster.key_file"},
		{name: "a key of no cluster", src: "cluster: {key_file: /k}\n", wrong: "cluster.node"},
		{name: "a socket without a password", src: "events: {listen: '127.0.0.1:4222'}\n", wrong: "events.listen"},
		{name: "a queue of none", src: "events: {max_queue: 0}\n", wrong: "events.max_queue"},
		{name: "a store of less than queues", src: "events: {store_bytes: 1GiB}\n", wrong: "events.store_bytes: 1073741824 is less than twice queue_bytes (1073741824)"},
		{name: "an event of what size", src: "events: {max_event: big}\n", wrong: "events.max_event"},
		{name: "dead letters for how long", src: "events: {keep_dead: 1s}\n", wrong: "events.keep_dead"},
		{name: "a subject of the server's", src: "events: {subjects: {acme: ['$JS.>']}}\n", wrong: "events.subjects.acme"},
		{name: "callbacks without a secret", src: "events: {callbacks: {hosts: [a.org]}}\n", wrong: "events.callbacks.secret_file"},
		{name: "callbacks to a URL", src: "events: {callbacks: {hosts: ['https://a.org']}}\n", wrong: "events.callbacks.hosts[0]"},
		{name: "callbacks to a bad range", src: "events: {callbacks: {networks: [10.0.0.1/8]}}\n", wrong: "events.callbacks.networks[0]"},
		{name: "nothing at once", src: "overload: {concurrency: 0}\n", wrong: "overload.concurrency"},
		{name: "nobody may wait", src: "overload: {queue: 0}\n", wrong: "overload.queue"},
		{name: "a target of what", src: "overload: {queue_target: 5}\n", wrong: "overload.queue_target"},
		{name: "a target beyond the interval", src: "overload: {queue_target: 1s, queue_interval: 100ms}\n", wrong: "queue_target"},
		{name: "no steps", src: "overload: {steps: -1}\n", wrong: "overload.steps"},
		{name: "bad interval", src: "gc: {interval: often}\n", wrong: "gc.interval"},
		{name: "unused since tomorrow", src: "gc: {unused: -1h}\n", wrong: "gc.unused"},
		{name: "bad size", src: "gc: {max_size: 0}\n", wrong: "gc.max_size"},
		{name: "fewer than none", src: "gc: {keep_newest: -1}\n", wrong: "gc.keep_newest"},
		{name: "bad pattern", src: "gc: {keep: ['[']}\n", wrong: "gc.keep[0]"},
		{name: "bad resolver", src: "network: {egress: {resolvers: [localhost]}}\n", wrong: "network.egress.resolvers[0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fre.yaml")
			if err := os.WriteFile(path, []byte(tt.src), 0o600); err != nil {
				t.Fatal(err)
			}
			var cfg Config
			err := cfg.ReadFile(path)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%q: %v; want an error that names %q", tt.src, err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, cfg.Debian); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{"landlock", "swap"}, cfg.Require); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{"registry.example.org:5000"}, cfg.InsecureRegistries); diff != "" {
				t.Error(diff)
			}
			registry := &Registry{
				Dir: "/var/lib/fre/registry", Listen: "127.0.0.1:5000", Cert: "/etc/fre/registry.pem", Key: "/etc/fre/registry.key",
				Users: "/etc/fre/registry.users", Interval: 6 * time.Hour, Grace: 24 * time.Hour,
			}
			if diff := cmp.Diff(registry, cfg.Registry); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(oci.Limits{Bytes: 32 << 30, Entries: 2_000_000, Ratio: 200}, cfg.ImageLimits); diff != "" {
				t.Error(diff)
			}
			want := egress.Config{
				Subnet: egress.DefaultSubnet, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
				Resolvers: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.53:53")},
			}
			if diff := cmp.Diff(want, cfg.Egress, cmpopts.EquateComparable(netip.Prefix{}, netip.AddrPort{})); diff != "" || cfg.AllowHostNetwork {
				t.Errorf("host network %v, egress:\n%s", cfg.AllowHostNetwork, diff)
			}
			if diff := cmp.Diff([]string{"media/segments"}, cfg.LendConnections); diff != "" {
				t.Error(diff)
			}
			if cfg.Packages.Pip.Index == "" || cfg.Packages.CACerts == "" || cfg.Packages.Proxy.None == "" {
				t.Errorf("settings not read: %+v", cfg.Packages)
			}
			gc := build.GCConfig{Interval: 6 * time.Hour, Policy: build.GCPolicy{
				Nameless: true, Unused: 720 * time.Hour, PerName: 5, MaxBytes: 50 << 30, Keep: []string{"base/*", "shop", "api:v*"},
			}}
			if diff := cmp.Diff(gc, cfg.GC); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(engine.InterpreterConfig{Ready: 2, Max: 8, MemoryBytes: 1 << 30}, cfg.Interpreters); diff != "" {
				t.Error(diff)
			}
			overload := admission.Config{MinFree: 0.05, SlowWait: 200 * time.Millisecond, Waits: 3, Every: 200 * time.Millisecond, Steps: 4}
			if diff := cmp.Diff(overload, cfg.Admission); diff != "" || cfg.BufferBytes != 256<<20 || cfg.ConnectionBytes != 64<<20 || cfg.BufferLock || cfg.BufferHuge {
				t.Errorf("%d and %d bytes of buffers, locked %v, huge %v, overload:\n%s", cfg.BufferBytes, cfg.ConnectionBytes, cfg.BufferLock, cfg.BufferHuge, diff)
			}
			queue := admission.QueueConfig{Length: 1024, Target: 20 * time.Millisecond, Interval: 100 * time.Millisecond}
			if diff := cmp.Diff(queue, cfg.Queue); diff != "" || cfg.Concurrency != 512 {
				t.Errorf("%d at once, queues:\n%s", cfg.Concurrency, diff)
			}
			if diff := cmp.Diff(live.WorkConfig{Limit: 1 << 30, Tenants: map[string]int64{"reports": 20 << 30}}, cfg.Work); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRenamedSettings: the flag --shells and the key shells still work, and the log names the new
// names. New names log nothing.
func TestRenamedSettings(t *testing.T) {
	for name, test := range map[string]struct {
		flag, key string
		want      []string
	}{
		"old names": {"--shells=7", "shells", []string{
			`level=WARN msg="setting has a new name: the old name is deprecated" old=--shells new=--parked-sandboxes`,
			`level=WARN msg="setting has a new name: the old name is deprecated" old=shells new=parked_interpreters`,
		}},
		"new names": {"--parked-sandboxes=7", "parked_interpreters", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			noTime := func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}
			d := &Daemon{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: noTime}))}
			flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			d.cfg.Flags(flags)
			if err := flags.Parse([]string{test.flag}); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "fre.yaml")
			if err := os.WriteFile(path, []byte(test.key+": {max: 3}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.cfg.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			if d.cfg.Parked != 7 || d.cfg.Interpreters.Max != 3 {
				t.Errorf("%d parked sandboxes and %d parked interpreters, want 7 and 3", d.cfg.Parked, d.cfg.Interpreters.Max)
			}
			if err := d.warnRenamed(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := slices.Collect(strings.Lines(log.String())); !slices.EqualFunc(got, test.want, func(got, want string) bool { return got == want+"\n" }) {
				t.Errorf("the log is %q, want %q", got, test.want)
			}
			if strings.Contains(flags.FlagUsages(), "--shells") {
				t.Error("help lists the old name")
			}
		})
	}
}

// The start fails if the files of --tls-cert and --tls-key are wrong.
func TestGatewayTLS(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if c, err := gatewayTLS("", "", log); c != nil || err != nil {
		t.Errorf("nothing: %v, %v", c, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, files := range [][2]string{{file, ""}, {"", file}, {file, file}, {file + "s", file}} {
		c, err := gatewayTLS(files[0], files[1], log)
		if c != nil || failure.Next(err) == "" {
			t.Errorf("%q: %v, %v", files, c, err)
		}
	}
}
