// Package functionsframework_test runs the conformance client of the Functions Framework against
// functions of contract: functions-framework. FRE_FUNCTIONS_FRAMEWORK_CLIENT is the client's path.
// CI cannot download the client, so make test-functions-framework is not part of make test.
// docs/contracts.md says how to build the client.
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

// address is the client's fixed address of the function.
const address = "127.0.0.1:8080"

// languages are the frameworks with their packages.
var languages = map[string]string{
	"python": "base: python\npackages: {pip: [functions-framework==3.10.2]}\nhandler: main.%s\n",
	"node":   "base: node\npackages: {npm: [\"@google-cloud/functions-framework@3.5.1\"]}\nhandler: index.%s\n",
}

// signatures are the client's -declarative-type, the client's -type and the framework's own word.
var signatures = []struct{ name, clients, frameworks string }{
	{"http", "http", "http"},
	{"cloudevent", "cloudevent", "cloudevent"},
	{"legacyevent", "legacyevent", "event"},
	{"typed", "http", ""}, // the function's code declares the type
}

// The conformance client accepts functions of each signature and language, and events converted
// from the other form.
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
	var function atomic.Pointer[string] // the function that the client calls
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
				if err := os.RemoveAll(output); err != nil { // the output of the function before
					t.Fatal(err)
				}
				// The client's own server command does nothing: the server runs already.
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

// serve forwards requests at the client's address to the current function.
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
