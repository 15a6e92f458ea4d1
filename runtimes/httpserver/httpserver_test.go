package httpserver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

// TestSplit: A command line splits into words with the quotes of a shell.
func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []string
		err  string
	}{
		{"node server.js", []string{"node", "server.js"}, ""},
		{"  sh -c 'exec a  \"$PORT\"'\t", []string{"sh", "-c", `exec a  "$PORT"`}, ""},
		{`a "b \"c\" \d \\" e\ f '' x"y"'z'`, []string{"a", `b "c" \d \`, "e f", "", "xyz"}, ""},
		{"", nil, ""},
		{"a 'b", nil, "quote ' is not closed"},
		{`a "b\`, nil, "ends in a backslash"},
	} {
		got, err := split(tt.line)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: got %q, %v, want %s", tt.line, got, err, tt.err)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", tt.line, err, diff)
		}
	}
}

// FuzzSplit: Quoted words come out unchanged.
func FuzzSplit(f *testing.F) {
	f.Add("node server.js", "a b")
	f.Add(`"\"`, `'\`)
	f.Fuzz(func(t *testing.T, line, word string) {
		words, err := split(line)
		if err != nil {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
		got, err := split(line + " " + quoted)
		if diff := cmp.Diff(append(words, word), got); err != nil || diff != "" {
			t.Errorf("%q and %q: %v %s", line, quoted, err, diff)
		}
	})
}

// TestCommand: The handler's words start the server, and the settings reach the adapter as
// variables.
func TestCommand(t *testing.T) {
	tmpl := template.Template{
		Handler: "uvicorn 'main:app'", HTTP: template.HTTP{Listen: template.ListenPort, Port: 8080, Ready: "/up"},
		Resources: template.Resources{Timeout: 10 * time.Second}, Instances: template.Instances{Concurrency: 4},
	}
	args, env, err := Runtime{}.Command(&tmpl)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/opt/fre/http", "uvicorn", "main:app"}, args); diff != "" {
		t.Error(diff)
	}
	want := []string{"FRE_CHANNEL=3", "FRE_CONCURRENCY=4", "FRE_HTTP_LISTEN=port", "FRE_HTTP_PORT=8080", "FRE_HTTP_READY=/up", "FRE_HTTP_TIMEOUT=9s"}
	if diff := cmp.Diff(want, env[len(env)-len(want):]); diff != "" {
		t.Error(diff)
	}
	tmpl.Network.Mode = template.NetworkHost
	if _, env, _ = (Runtime{}).Command(&tmpl); !strings.Contains(strings.Join(env, " "), "FRE_HTTP_PORT=0 ") {
		t.Errorf("on the host's network: %q, want any free port", env)
	}
	for _, handler := range []string{"", " ", "a 'b"} {
		tmpl.Handler = handler
		var field *template.FieldError
		if _, _, err := (Runtime{}).Command(&tmpl); !errors.As(err, &field) || field.Field != "handler" {
			t.Errorf("%q: %v", handler, err)
		}
	}
}
