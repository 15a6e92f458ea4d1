package system

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/template"
)

// conformanceDir returns the directory with the cases of CloudEvents' conformance tool, from the
// tool's module.
func conformanceDir(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/cloudevents/conformance")
	cmd.Dir = "../../tools/cloudevents"
	cmd.Env = append(os.Environ(), "GOWORK=off") // go.work does not list the module
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err = errors.Join(err, json.Unmarshal(out, &module)); err != nil || module.Dir == "" {
		t.Fatalf("go mod download: %v: %s", err, out)
	}
	return module.Dir
}

// sentEvent is a CloudEvent of version 1.0 in the conformance tool's files.
type sentEvent struct {
	Mode       string `yaml:"Mode"`
	Attributes struct {
		Type        string            `yaml:"type"`
		Time        string            `yaml:"time"`
		ID          string            `yaml:"id"`
		Source      string            `yaml:"source"`
		ContentType string            `yaml:"datacontenttype"`
		Extensions  map[string]string `yaml:"Extensions"`
	} `yaml:"ContextAttributes"`
	Data string `yaml:"Data"`
}

// sentEvents reads a file of the conformance tool.
func sentEvents(t *testing.T, path string) []sentEvent {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []sentEvent
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var e sentEvent
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, e)
	}
}

// header returns the event's headers as the function receives them in binary mode.
func (e *sentEvent) header() map[string]string {
	all := map[string]string{
		"ce-specversion": "1.0", "ce-type": e.Attributes.Type, "ce-time": e.Attributes.Time, "ce-id": e.Attributes.ID,
		"ce-source": e.Attributes.Source, "content-type": e.Attributes.ContentType,
	}
	for name, value := range e.Attributes.Extensions {
		all["ce-"+name] = strings.TrimSpace(value)
	}
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}

// The gateway takes the events of CloudEvents' own conformance tool and of its feature files. The
// function gets each event once, in binary mode.
func TestCloudEventsConformance(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	tool, cases := fretest.Tool(t, "cloudevents"), conformanceDir(t)
	w := newTriggered(t, "", 1000, template.Trigger{Name: "events", CloudEvents: &template.CloudEvents{}})
	w.deploy("drop events cloudevents /hooks/drop/events")
	w.untilWork()
	w.open()
	run := func(command string, args ...string) (string, error) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), tool, append([]string{command, w.d.URL("/hooks/drop/events")}, args...)...).CombinedOutput()
		return string(out), err
	}
	number := 0 // events that the function has received
	// next returns the n events since the last call, in order.
	next := func(t *testing.T, n int) []delivery {
		t.Helper()
		var all []delivery
		w.until(func() error {
			if all = w.deliveries("done"); len(all) < number+n {
				return fmt.Errorf("%d events were done, want %d", len(all), number+n)
			}
			return nil
		})
		all = all[number:]
		number += n
		if len(all) > n {
			t.Fatalf("events too many: %+v, want %d", all, n)
		}
		return all
	}
	same := func(t *testing.T, what string, got delivery, header map[string]string, body string) {
		t.Helper()
		if diff := cmp.Diff(header, got.Event); diff != "" || got.Source != "cloudevents/events" {
			t.Errorf("%s by %s (-want +got):\n%s", what, got.Source, diff)
		}
		if got.Body != body {
			t.Errorf("%s: body %q, want %q", what, got.Body, body)
		}
	}

	t.Run("invoke", func(t *testing.T) {
		for _, file := range []string{"yaml/v1.0/v1_minimum.yaml", "yaml/v1.yaml"} {
			file = filepath.Join(cases, file)
			want := sentEvents(t, file)
			if len(want) == 0 {
				t.Fatalf("%s has no events", file)
			}
			if out, err := run("invoke", "-f", file); err != nil {
				t.Errorf("cloudevents invoke -f %s: %v\n%s", file, err, out)
			}
			if want[len(want)-1].Mode == "structured" { // same source and id as the event before: one event
				want = want[:len(want)-1]
			}
			byID := map[string]delivery{}
			for _, d := range next(t, len(want)) {
				byID[d.Event["ce-id"]] = d
			}
			for _, e := range want {
				same(t, filepath.Base(file)+" "+e.Attributes.ID, byID[e.Attributes.ID], e.header(), e.Data)
			}
		}
	})
	t.Run("structured", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(cases, "yaml/v1.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		_, last, ok := strings.Cut(string(text), "\n---\n")
		if !ok || !strings.HasPrefix(last, "Mode: structured\n") {
			t.Fatalf("v1.yaml has another shape: %s", text)
		}
		file := filepath.Join(t.TempDir(), "structured.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(last, "4321-4321-4321", "an id of its own")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := run("invoke", "-f", file); err != nil {
			t.Fatalf("cloudevents invoke: %v\n%s", err, out)
		}
		want := sentEvents(t, file)[0].header()
		want["ce-id"], want["ce-comexampleextension2"], want["content-type"] = "an%20id%20of%20its%20own", "{%22othervalue%22:%205}", "application/json"
		same(t, "structured", next(t, 1)[0], want, `{"world":"hello"}`)
	})
	t.Run("send", func(t *testing.T) {
		for _, mode := range []string{"binary", "structured"} {
			out, err := run("send", "--mode", mode, "--id", "sent-"+mode, "--source", "/conformance", "--type", "com.example.sent", "--subject", "a subject",
				"--time", "2018-04-05T03:56:24Z", "--datacontenttype", "application/json", "--extension", "ext=value", "--data", `{"msg":"Hello, 🌎!"}`)
			if err != nil {
				t.Fatalf("cloudevents send --mode %s: %v\n%s", mode, err, out)
			}
			subject := "a subject" // the tool sends the subject as given, but the binding requires an encoded subject
			if mode == "structured" {
				subject = "a%20subject"
			}
			same(t, mode, next(t, 1)[0], map[string]string{
				"ce-specversion": "1.0", "ce-id": "sent-" + mode, "ce-source": "/conformance", "ce-type": "com.example.sent", "ce-subject": subject,
				"ce-time": "2018-04-05T03:56:24Z", "ce-ext": "value", "content-type": "application/json",
			}, `{"msg":"Hello, 🌎!"}`)
		}
	})
	t.Run("another version", func(t *testing.T) {
		file := filepath.Join(cases, "yaml/v0.3/v03_minimum.yaml")
		out, err := run("invoke", "-f", file)
		if n := strings.Count(out, "400 Bad Request"); err == nil || n < len(sentEvents(t, file)) {
			t.Errorf("cloudevents invoke -f %s: %v, refused %d times:\n%s", file, err, n, out)
		}
	})
	t.Run("features", func(t *testing.T) {
		for i, f := range features(t, filepath.Join(cases, "features/http-protocol-binding.feature")) {
			id := fmt.Sprintf("1234-1234-123%d", 5+i) // the file repeats one id, which would make a single event
			request := strings.ReplaceAll(f.request, "1234-1234-1234", id)
			request = strings.Replace(request, "POST /someresource ", "POST /hooks/drop/events ", 1)
			if status := exchange(t, w.d.Addr(), request); status != http.StatusAccepted {
				t.Fatalf("%s: status %d\n%s", f.name, status, request)
			}
			got := next(t, 1)[0]
			want := map[string]string{}
			for name, value := range f.attributes {
				switch name {
				case "datacontenttype":
					want["content-type"] = value
				case "id":
					want["ce-id"] = id
				default:
					want["ce-"+name] = value
				}
			}
			var body, wantBody any
			if err := errors.Join(json.Unmarshal([]byte(got.Body), &body), json.Unmarshal([]byte(f.body), &wantBody)); err != nil {
				t.Errorf("%s: body %q: %v", f.name, got.Body, err)
			}
			if diff := cmp.Diff(wantBody, body); diff != "" {
				t.Errorf("%s: body (-want +got):\n%s", f.name, diff)
			}
			same(t, f.name, got, want, got.Body)
		}
	})
}

// exchange sends a request unchanged and returns the status of the answer.
func exchange(t *testing.T, address, request string) int {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// feature is one example of a scenario: a request and the event in it.
type feature struct {
	name, request, body string
	attributes          map[string]string
}

// features reads a file of scenarios. A scenario has a request between two lines of """, a table of
// attributes, the data between two lines of """, and examples of one parameter.
func features(t *testing.T, path string) []feature {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []feature
	scenarios := strings.Split(string(text), "Scenario Outline: ")[1:]
	for _, s := range scenarios {
		name, _, _ := strings.Cut(s, "\n")
		parts := strings.Split(s, `"""`)
		scenario, examples, ok := strings.Cut(s, "Examples:")
		if len(parts) != 5 || !ok {
			t.Fatalf("%s: %s has another shape", path, name)
		}
		head, body, _ := strings.Cut(unindent(parts[1]), "\n\n")
		request := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
		attributes := map[string]string{}
		for _, row := range rows(strings.Replace(scenario, parts[1], "", 1)) {
			if len(row) == 2 && row[0] != "key" {
				attributes[row[0]] = row[1]
			}
		}
		for _, row := range rows(examples)[1:] {
			with := func(s string) string { return strings.ReplaceAll(s, "<contentType>", row[0]) }
			f := feature{with(name), with(request), parts[3], map[string]string{}}
			for key, value := range attributes {
				f.attributes[key] = with(value)
			}
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no scenarios", path)
	}
	return all
}

// unindent removes the first and the last line, and the indentation of the text.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	lines = lines[1 : len(lines)-1]
	indent := len(lines[0]) - len(strings.TrimLeft(lines[0], " "))
	for i, l := range lines {
		lines[i] = l[min(indent, len(l)):]
	}
	return strings.Join(lines, "\n")
}

// rows returns the cells of a table.
func rows(text string) [][]string {
	var all [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		all = append(all, cells)
	}
	return all
}
