package lambda

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/internal/fretest"
)

// TestCodeOnItsWay: a client that sends code slowly or not at all, with any signature, blocks no
// other client's upload. An address has a limited number of simultaneous uploads, and a disconnect
// frees the place.
func TestCodeOnItsWay(t *testing.T) {
	fretest.CheckLeaks(t)
	h, a := newTest(t, "")
	_, text, err := a.CreateToken(access.TokenOptions{Name: "t", Tenant: "acme", Scopes: []access.Scope{access.Deploy}, AccessKey: true})
	if err != nil {
		t.Fatal(err)
	}
	key, secret := access.AccessKey(text)
	srv := httptest.NewServer(h)
	defer srv.Close()
	send := func(secret string, length int, body string) net.Conn {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, functions, http.NoBody)
		r.Host = srv.Listener.Addr().String()
		r.Header.Set("X-Amz-Date", time.Now().UTC().Format(dateTime))
		sign(t, r, key, secret, []string{"host", "x-amz-date"}, []byte(body))
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // some are closed already
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nX-Amz-Date: %s\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s",
			functions, r.Host, r.Header.Get("X-Amz-Date"), r.Header.Get("Authorization"), length, body)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	answer := func(c net.Conn) string {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		return resp.Header.Get("X-Amzn-Errortype")
	}
	const broken = "{" // reaches a handler once the body is in memory
	var stalled []net.Conn
	for len(stalled) < maxReceivingOf-1 {
		stalled = append(stalled, send("a guess", 60_000_000, "drip"))
	}
	if got := answer(send(secret, len(broken), broken)); got != "InvalidRequestContentException" {
		t.Errorf("beside bodies that do not come: %s", got)
	}
	if got := answer(send("a guess", len(broken), broken)); got != "InvalidSignatureException" {
		t.Errorf("by another's secret: %s", got)
	}
	stalled = append(stalled, send("a guess", 60_000_000, "drip"))
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); ; {
			got := answer(send(secret, len(broken), broken))
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s, want %s", got, want)
			}
		}
	}
	until("TooManyRequestsException")
	for _, c := range stalled {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	until("InvalidRequestContentException")
}

// scratch makes directories, and fails the test if a directory remains.
func scratch(t *testing.T) func() (string, error) {
	t.Helper()
	in := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(in)
		if err != nil || len(left) > 0 {
			t.Errorf("left: %s, %v", strings.Join(names(left), " "), err)
		}
	})
	return func() (string, error) { return os.MkdirTemp(in, "") } //nolint:usetesting // the server removes it
}

func names(all []os.DirEntry) (out []string) {
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}
