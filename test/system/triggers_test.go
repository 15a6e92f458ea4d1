package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// deliveriesWithin bounds the waits of a test; no measurement depends on it. An event of a killed
// engine runs again after 15 seconds.
const deliveriesWithin = 5 * time.Minute

// fullQueue is the queue limit of the function, for tests that fill the queue.
const fullQueue = 2

// delivery is the function's report about one event.
type delivery struct {
	ID, Attempt, Source, Subject, Body, File string
	Event                                    map[string]string // attributes
}

// triggered is an engine with one function, drop, of one instance. The function handles no event
// before the test calls open.
type triggered struct {
	t    *testing.T
	cfg  testdaemon.Config
	work string
	d    *testdaemon.Daemon // nil while no engine runs
}

func newTriggered(t *testing.T, config string, queue int, trigger template.Trigger) *triggered {
	t.Helper()
	dir := daemontest.Dir(t)
	w := &triggered{t: t, work: filepath.Join(dir, "state/tenants/default/work"), cfg: testdaemon.Config{State: filepath.Join(dir, "state"), Log: t.Output()}}
	if config != "" {
		file := filepath.Join(dir, "fre.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		w.cfg.Args = []string{"--config", file}
	}
	err := testdaemon.PutImages(t.Context(), w.cfg.State, testdaemon.Function{Name: "drop", Program: filepath.Join(fretest.Rootfs(t), "bin/prog"), Config: image.Config{
		Args: []string{"/function/program", "deliver"}, Triggers: []template.Trigger{trigger},
		Events: &template.Events{Retries: 100, Backoff: 10 * time.Millisecond, Priority: "normal", MaxQueue: queue, Results: time.Hour},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	w.start()
	return w
}

func (w *triggered) start() {
	w.t.Helper()
	w.d = daemontest.Start(w.t, w.cfg)
}

func (w *triggered) stop() {
	w.t.Helper()
	if w.d != nil {
		daemontest.Stop(w.t, w.d)
		w.d = nil
	}
}

// kill ends the engine by SIGKILL and waits until the sandboxes are gone.
func (w *triggered) kill() {
	w.t.Helper()
	family := testdaemon.Descendants(w.d.PID())
	w.d.Kill()
	w.d = nil
	w.until(func() error {
		for _, p := range family {
			if p.Alive() {
				return fmt.Errorf("process %v survived the engine", p)
			}
		}
		return nil
	})
}

func (w *triggered) cli(args ...string) string {
	w.t.Helper()
	out, err := w.d.CLI(w.t.Context(), args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *triggered) until(what func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), deliveriesWithin)
	defer cancel()
	if err := testdaemon.Until(ctx, what); err != nil {
		w.t.Fatal(err)
	}
}

// deploy deploys the function and looks for the trigger in the list.
func (w *triggered) deploy(trigger string) {
	w.t.Helper()
	w.cli("deploy", "--image", "drop:1", "--name", "drop")
	if got := w.cli("triggers", "--format", "{{.Function}} {{.Name}} {{.Kind}} {{.Detail}}"); got != trigger+"\n" {
		w.t.Errorf("fre triggers: got %q, want %q", got, trigger)
	}
}

// inbox makes a directory that the function may change as well.
func (w *triggered) inbox(name string) (dir string) {
	w.t.Helper()
	w.untilWork()
	st, err := os.Stat(w.work)
	if err != nil {
		w.t.Fatal(err)
	}
	owner := st.Sys().(*syscall.Stat_t)
	dir = filepath.Join(w.work, name)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(owner.Uid), int(owner.Gid))); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// untilWork waits for the tenant's /work, which appears with the first function.
func (w *triggered) untilWork() {
	w.t.Helper()
	w.until(func() error {
		_, err := os.Stat(w.work)
		return err
	})
}

// open lets the function handle its events.
func (w *triggered) open() {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.work, "open"), nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// deliveries returns the events that the function has begun or done.
func (w *triggered) deliveries(which string) []delivery {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.work, which))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	var all []delivery
	for line := range bytes.Lines(text) {
		var d delivery
		if line[len(line)-1] != '\n' {
			break // still being written
		}
		if err := json.Unmarshal(line, &d); err != nil {
			w.t.Fatalf("%s: %v: %s", which, err, line)
		}
		all = append(all, d)
	}
	return all
}

// held waits until the function works on the first event and the queue is full, so that the next
// event waits at its source.
func (w *triggered) held() {
	w.t.Helper()
	w.until(func() error {
		if len(w.deliveries("begun")) == 0 {
			return errors.New("no event was begun")
		}
		if got := strings.Fields(w.cli("events", "ls", "--function", "drop", "-q")); len(got) != fullQueue {
			return fmt.Errorf("fre events ls: %q, want %d", got, fullQueue)
		}
		return nil
	})
	first := w.deliveries("begun")[0]
	if got := w.cli("events", "ls", "--state", "running", "--format", "{{.ID}} {{.Function}} {{.Attempts}}"); first.Attempt != "1" || !strings.Contains(got, first.ID+" drop 1\n") {
		w.t.Errorf("fre events ls --state running: got %q, and the function has %+v", got, first)
	}
}

// done waits until the function has handled the wanted events, compared by text, and looks up each
// event in the queue's records.
func (w *triggered) done(source string, text func(delivery) string, want ...string) {
	w.t.Helper()
	var got []delivery
	w.until(func() error {
		if got = w.deliveries("done"); len(got) < len(want) {
			return fmt.Errorf("done: %+v, want %q", got, want)
		}
		return nil
	})
	var texts []string
	for _, d := range got {
		texts = append(texts, text(d))
		var shown string
		w.until(func() error { // the answer may still be on its way
			if shown = w.cli("events", "show", "--format", "{{.Function}} {{.State}} {{.Source}} {{.Status}}", d.ID); !strings.Contains(shown, "done") {
				return fmt.Errorf("fre events show %s: %q", d.ID, shown)
			}
			return nil
		})
		if want := "drop done " + source + " 200\n"; shown != want || d.Source != source {
			w.t.Errorf("fre events show: got %q, want %q; the function was told %+v", shown, want, d)
		}
		if got, want := w.cli("events", "show", "--body", d.ID), "delivered "+d.Body; got != want {
			w.t.Errorf("fre events show --body: got %q, want %q", got, want)
		}
	}
	first := w.deliveries("begun")[0]
	if !slices.ContainsFunc(got, func(d delivery) bool { return d.ID == first.ID && d.Attempt != "1" }) {
		w.t.Errorf("%+v, which the engine was killed under, was not tried again: %+v", first, got)
	}
	slices.Sort(texts)
	slices.Sort(want)
	if !slices.Equal(texts, want) {
		w.t.Errorf("the function did %q, want %q", texts, want)
	}
	if left := w.cli("events", "ls", "-q"); left != "" {
		w.t.Errorf("fre events ls: %q is left", left)
	}
}

// Each kind of trigger survives a crash of the engine: each event is handled once. The cases run in
// parallel on their own engines, because a killed engine's events wait before they run again.
func TestTriggers(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	for name, test := range map[string]func(*testing.T){
		"files":        filesTrigger,
		"NATS inside":  func(t *testing.T) { t.Helper(); natsTrigger(t, "inside") },
		"NATS outside": func(t *testing.T) { t.Helper(); natsTrigger(t, "outside") },
		"NATS subject": natsSubjectTrigger,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// filesTrigger drops files into a tenant's /work. The engine dies while the function has the first
// file, the second is queued, others wait in the directory and one more arrives. Each file is
// handled once.
func filesTrigger(t *testing.T) {
	t.Helper()
	w := newTriggered(t, "", fullQueue, template.Trigger{Name: "reports", Files: &template.Files{Path: "inbox/*.csv"}})
	w.deploy("drop reports files /work/inbox/*.csv")
	inbox := w.inbox("inbox")
	drop := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(inbox, name), []byte("in "+name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	drop("a.csv", "b.csv", "c.csv", "d.csv", "other.txt")
	w.held()
	w.kill()
	drop("e.csv")
	w.open()
	w.start()
	content := func(d delivery) string { return d.File }
	w.done("files/reports", content, "in a.csv", "in b.csv", "in c.csv", "in d.csv", "in e.csv")
	drop("f.csv") // after the last file no earlier file can be on its way
	w.done("files/reports", content, "in a.csv", "in b.csv", "in c.csv", "in d.csv", "in e.csv", "in f.csv")
	if left, err := os.ReadDir(inbox); err != nil || len(left) != 1 || left[0].Name() != "other.txt" {
		t.Errorf("in the inbox: %v, %v, want other.txt alone", left, err)
	}
}

// natsCommand runs the nats command line.
func natsCommand(t *testing.T, server string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), fretest.Tool(t, "nats"), append([]string{"--server", server, "--no-context"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nats %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// natsTrigger publishes to a stream by the nats command line, at the engine's own server or at an
// outside server. The engine dies while the function has the first message, the second is queued
// and others wait in the stream. Each message is handled once.
func natsTrigger(t *testing.T, where string) {
	t.Helper()
	server, config := natsAt(t, where)
	w := newTriggered(t, config, fullQueue, template.Trigger{Name: "stock", NATS: &template.NATS{Subject: "fre.in.default.stock.*", Stream: "STOCK"}})
	nats := func(args ...string) string {
		t.Helper()
		return natsCommand(t, server, args...)
	}
	nats("stream", "add", "STOCK", "--subjects", "fre.in.default.stock.>", "--defaults")
	w.deploy("drop stock nats fre.in.default.stock.* of STOCK")
	w.until(func() error { // from now on the trigger gets the messages
		if out := nats("consumer", "ls", "STOCK", "--names"); !strings.Contains(out, "fre-stock-") {
			return fmt.Errorf("the stream's consumers: %s", out)
		}
		return nil
	})
	publish := func(names ...string) {
		t.Helper()
		for _, name := range names {
			nats("pub", "--jetstream", "fre.in.default.stock."+name, "new "+name)
		}
	}
	publish("a", "b", "c", "d", "c.no-match")
	w.held()
	w.kill()
	want := []string{"stock.a: new a", "stock.b: new b", "stock.c: new c", "stock.d: new d"}
	if where == "outside" {
		publish("e")
		want = append(want, "stock.e: new e")
	}
	w.open()
	w.start()
	message := func(d delivery) string { return strings.TrimPrefix(d.Subject, "fre.in.default.") + ": " + d.Body }
	w.done("nats/stock", message, want...)
	publish("f") // after the last message no earlier message can be on its way
	w.done("nats/stock", message, append(want, "stock.f: new f")...)
	w.until(func() error {
		out := nats("consumer", "info", "STOCK", strings.TrimSpace(nats("consumer", "ls", "STOCK", "--names")), "--json")
		var info struct {
			AckPending int `json:"num_ack_pending"`
			Pending    int `json:"num_pending"`
		}
		if err := json.Unmarshal([]byte(out), &info); err != nil || info.AckPending+info.Pending != 0 {
			return fmt.Errorf("messages are not acknowledged: %+v, %w", info, err)
		}
		return nil
	})
}

// natsSubjectTrigger publishes to a subject without a stream by the nats command line. An accepted
// message is handled once, even if the engine dies.
func natsSubjectTrigger(t *testing.T) {
	t.Helper()
	server, config := natsAt(t, "outside")
	w := newTriggered(t, config, fullQueue, template.Trigger{Name: "orders", NATS: &template.NATS{Subject: "fre.in.default.orders"}})
	w.deploy("drop orders nats fre.in.default.orders")
	publish := func(id, body string) {
		t.Helper()
		natsCommand(t, server, "pub", "-H", "Nats-Msg-Id: "+id, "fre.in.default.orders", body)
	}
	w.until(func() error { // the test cannot see when the engine listens, so it repeats the message: the same id is the same event
		if publish("1", "one"); len(w.deliveries("begun")) == 0 {
			return errors.New("no event was begun")
		}
		return nil
	})
	w.kill()
	w.open()
	w.start()
	body := func(d delivery) string { return d.Body }
	w.done("nats/orders", body, "one")
	publish("1", "one")
	w.until(func() error {
		if publish("2", "two"); len(w.deliveries("done")) < 2 {
			return errors.New("the second was not done")
		}
		return nil
	})
	w.done("nats/orders", body, "one", "two")
}

// natsAt returns the address of a NATS server and the engine's configuration for the server: inside
// the engine, or started by the test.
func natsAt(t *testing.T, where string) (server, config string) {
	t.Helper()
	if where == "inside" {
		address := freeAddress(t)
		password := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "nats://operator:secret@" + address, fmt.Sprintf("events: {listen: '%s', user: operator, password_file: '%s'}\n", address, password)
	}
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(deliveriesWithin) {
		t.Fatal("the NATS server takes no connections")
	}
	return s.ClientURL(), fmt.Sprintf("events: {nats: '%s', replicas: 1}\n", s.ClientURL())
}
