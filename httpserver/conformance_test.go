package httpserver_test

import (
	"crypto/tls"
	"encoding/xml"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// TestConformance: every case of h2spec, the suite for RFC 7540 and 7541, passes, including the
// strict cases. One case fails in cleartext: input without the preface counts as HTTP/1.1 and is
// answered in HTTP/1.1.
func TestConformance(t *testing.T) {
	program := fretest.Tool(t, "h2spec")
	cfg := httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		_, _ = io.Copy(io.Discard, x.Body) // the suite sends incomplete bodies
		_ = x.Send(200, []byte("conforms"))
	})}
	secure := cfg
	secure.TLS = &tls.Config{GetCertificate: certificate(t).Get}
	for name, c := range map[string]struct {
		cfg    httpserver.Config
		args   []string
		failed []string
	}{
		"clear": {cfg, nil, []string{"Sends invalid connection preface"}},
		"tls":   {secure, []string{"--tls", "--insecure"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the suite mostly waits
			_, port, err := net.SplitHostPort(start(t, c.cfg))
			if err != nil {
				t.Fatal(err)
			}
			report := filepath.Join(t.TempDir(), "junit.xml")
			out, runErr := exec.CommandContext(t.Context(), program, append(c.args, "--strict", "--timeout", "60", "--port", port, "--junit-report", report)...).CombinedOutput()
			src, err := os.ReadFile(report)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var got struct {
				Suites []struct {
					Cases []struct {
						Class   string  `xml:"classname,attr"`
						Failure *string `xml:"failure"`
						Error   *string `xml:"error"`
						Skipped *string `xml:"skipped"`
					} `xml:"testcase"`
				} `xml:"testsuite"`
			}
			if err := xml.Unmarshal(src, &got); err != nil {
				t.Fatal(err)
			}
			cases := 0
			var failed []string
			for _, s := range got.Suites {
				for _, c := range s.Cases {
					if cases++; c.Failure != nil || c.Error != nil || c.Skipped != nil {
						failed = append(failed, c.Class)
					}
				}
			}
			if cases != 146 || !slices.Equal(failed, c.failed) {
				t.Errorf("of %d cases, want 146, %q fail, want %q: %v\n%s", cases, failed, c.failed, runErr, out)
			}
		})
	}
}
