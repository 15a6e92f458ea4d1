package httpserver_test

import (
	"bytes"
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// TestCurl: curl, a different implementation of HTTP/2, receives answers and sends bodies
// completely.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		if os.Getenv("FRE_TEST_ROOT") == "1" {
			t.Fatal("needs curl: scripts/deps.sh test")
		}
		t.Skip("needs curl")
	}
	fretest.CheckLeaks(t)
	cfg := httpserver.Config{Handler: everything(t)}
	plain := "http://" + start(t, cfg)
	cfg.TLS = &tls.Config{GetCertificate: certificate(t).Get}
	secure := "https://" + start(t, cfg)
	upload := filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(upload, large, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, base := range [][]string{{plain, "--http2-prior-knowledge"}, {secure, "--http2"}} {
		for path, args := range map[string][]string{"/file": nil, "/stream": nil, "/echo": {"--data-binary", "@" + upload}, "/both": {"--upload-file", upload}} {
			args = append(args, base[1], "--silent", "--show-error", "--insecure", "--noproxy", "*", "--max-time", "300", "--write-out", "%{stderr}%{http_version} %{response_code}", base[0]+path)
			cmd := exec.CommandContext(t.Context(), curl, args...)
			var said bytes.Buffer
			cmd.Stderr = &said
			got, err := cmd.Output()
			if err != nil || said.String() != "2 200" || !bytes.Equal(got, large) {
				t.Errorf("%s %s: %q, %d bytes of %d, %v", base[0], path, &said, len(got), len(large), err)
			}
		}
	}
}
