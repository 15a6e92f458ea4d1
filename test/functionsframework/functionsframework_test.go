// Package functionsframework_test has the conformance client of the Functions Framework call
// functions of contract: functions-framework. FRE_FUNCTIONS_FRAMEWORK_CLIENT is its path: it
// cannot be had from where CI gets its programs, so that make test-functions-framework is not
// part of make test. docs/contracts.md says how it is built.
package functionsframework_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// address is where the client looks for the function, whatever it is told.
const address = "127.0.0.1:8080"

// languages are the frameworks with the packages they come in.
var languages = map[string]string{
	"python": "base: python\npackages: {pip: [functions-framework==3.10.2]}\nhandler: main.%s\n",
	"node":   "base: node\npackages: {npm: [\"@google-cloud/functions-framework@3.5.1\"]}\nhandler: index.%s\n",
}

// signatures are the client's -declarative-type beside its -type and the framework's own word.
var signatures = []struct{ name, clients, frameworks string }{
	{"http", "http", "http"},
	{"cloudevent", "cloudevent", "cloudevent"},
	{"legacyevent", "legacyevent", "event"},
	{"typed", "http", ""}, // which the function says itself
}

// TestFunctionsFramework runs the client's validation, that of events in each other's form
// included, for each signature and language.
func TestFunctionsFramework(t *testing.T) {
	client := os.Getenv("FRE_FUNCTIONS_FRAMEWORK_CLIENT")
	if client == "" {
		t.Fatal("FRE_FUNCTIONS_FRAMEWORK_CLIENT does not say where the conformance client is: docs/contracts.md says how it is built")
	}
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	dir := daemontest.Dir(t)
	d := daemontest.Start(t, testdaemon.Config{State: filepath.Join(dir, "state"), Log: t.Output()})
	t.Cleanup(func() { daemontest.Stop(t, d) })
	var function atomic.Pointer[string] // that the client calls
	serve(t, d.Addr(), &function)

	for language, text := range languages {
		for _, s := range signatures {
			t.Run(language+" "+s.name, func(t *testing.T) {
				name := language + "-" + s.name
				template := filepath.Join(dir, name)
				if err := os.CopyFS(template, os.DirFS(filepath.Join("testdata", language))); err != nil {
					t.Fatal(err)
				}
				text := fmt.Sprintf("id: "+name+"\ncontract: functions-framework\n"+text, s.name)
				if s.frameworks != "" {
					text += "env: {FUNCTION_SIGNATURE_TYPE: " + s.frameworks + "}\n"
				}
				if err := os.WriteFile(filepath.Join(template, "fret.yaml"), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				if _, err := d.CLI(t.Context(), "deploy", template, "--name", name); err != nil {
					t.Fatal(err)
				}
				function.Store(&name)
				output := filepath.Join(dir, "state/tenants/default/work/function_output.json")
				if err := os.RemoveAll(output); err != nil { // what another function wrote
					t.Fatal(err)
				}
				// The server that it would start is there already.
				cmd := exec.CommandContext(t.Context(), client, "-cmd", "sleep infinity", "-start-delay", "0", "-buildpacks=false",
					"-type", s.clients, "-declarative-type", s.name, "-output-file", output)
				cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir}
				said, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, said)
				}
				t.Logf("%s", said)
			})
		}
	}
}

// serve passes what comes to the client's address on to the function that is named by then.
func serve(t *testing.T, gateway string, function *atomic.Pointer[string]) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("%v: the conformance client knows no other address", err)
	}
	transport := &http.Transport{}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: gateway, Path: "/function/" + *function.Load()})
	}}}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
		transport.CloseIdleConnections()
	})
}
