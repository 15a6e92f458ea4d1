package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/sandbox"
)

// TestLimitStatus: what the host cannot give a command is the template's fault, and
// said in full.
func TestLimitStatus(t *testing.T) {
	got := errorOf(fmt.Errorf("run: %w", &sandbox.LimitError{Limit: "files", Controller: "RLIMIT_NOFILE", Host: "web1", Want: 2, Most: 1}))
	if got.Status != http.StatusUnprocessableEntity || got.Code != api.CodeTemplate || !strings.Contains(got.Message, "host web1") {
		t.Errorf("got %+v with status %d, want 422 and the host", got, got.Status)
	}
}
