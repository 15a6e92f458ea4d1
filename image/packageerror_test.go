package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/template"
)

// TestDebianFault: Faults of a Debian archive are told apart from local faults.
func TestDebianFault(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		cause PackageCause // 0: the error stays unchanged
	}{
		"signature":    {fmt.Errorf("x: %w", debian.ErrSignature), PackageChanged},
		"expired":      {fmt.Errorf("x: %w", debian.ErrExpired), PackageChanged},
		"hash":         {fmt.Errorf("x: %w", &debian.FetchError{Err: debian.ErrHash}), PackageChanged},
		"hostile":      {fmt.Errorf("x: %w", debian.ErrUnsafe), PackageBad},
		"gone":         {fmt.Errorf("x: %w", &debian.FetchError{Status: 404, Err: fs.ErrNotExist}), PackageGone},
		"not known":    {fmt.Errorf("x: %w", debian.ErrUnresolved), PackageGone},
		"credentials":  {&debian.FetchError{Status: 401, Err: errors.New("no")}, SiteRefused},
		"forbidden":    {&debian.FetchError{Status: 403, Err: errors.New("no")}, SiteRefused},
		"busy":         {&debian.FetchError{Status: 429, Err: errors.New("no")}, SiteBusy},
		"down":         {&debian.FetchError{Status: 503, Err: errors.New("no")}, SiteDown},
		"unreachable":  {&debian.FetchError{Err: unix.ECONNREFUSED}, SiteDown},
		"cut short":    {&debian.FetchError{Err: io.ErrUnexpectedEOF}, SiteDown},
		"cancelled":    {&debian.FetchError{Err: context.Canceled}, 0},
		"disk full":    {&debian.FetchError{Err: unix.ENOSPC}, 0},
		"the template": {&template.FieldError{Field: "packages.deb", Message: "no"}, 0},
		"ours":         {errors.New("no"), 0},
		"none":         {nil, 0},
	} {
		var e *PackageError
		got := debianFault(tt.err)
		if errors.As(got, &e) != (tt.cause != 0) || e != nil && (e.Cause != tt.cause || e.Next() == "") || !errors.Is(got, tt.err) {
			t.Errorf("%s: got %+v, want the cause %d", name, got, tt.cause)
		}
	}
}

// TestSiteDown: The error for a Debian archive that refuses a request names the archive's fault.
func TestSiteDown(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	defer server.Close()
	key, err := openpgp.NewEntity("test", "", "test@example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	var keys bytes.Buffer
	if err := key.Serialize(&keys); err != nil {
		t.Fatal(err)
	}
	keyring := filepath.Join(t.TempDir(), "key.gpg")
	if err := os.WriteFile(keyring, keys.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, nil)
	r.Archive = func(release string) (Archive, error) {
		return debian.Open(debian.Config{
			Release: "bookworm", Cache: t.TempDir(), Sources: []debian.Source{{URI: server.URL, Suite: "bookworm", Components: []string{"main"}, Keyrings: []string{keyring}}},
		})
	}
	_, err = r.Base(t.Context(), "python", nil)
	var e *PackageError
	if !errors.As(err, &e) || e.Cause != SiteRefused || e.Site != "deb" {
		t.Errorf("got %v", err)
	}
}
