package install

import (
	"errors"
	"fmt"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// The cause of a failed package is read from the tools' real messages.
func TestPackageFailed(t *testing.T) {
	asked := regexp.MustCompile(`No solution found|E404|Could not find artifact`)
	for words, want := range map[string]image.PackageCause{
		"Hash mismatch for `toml==0.10.2`\nExpected:\n  sha256:00":                                                                                                      image.PackageChanged,
		"THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions":                                                   image.PackageChanged,
		"Could not transfer artifact g:a:jar:1 from/to central: Checksum validation failed, expected 'x'":                                                               image.PackageChanged,
		"The checksum verification of the file failed (downloaded from https://h/a.zip)":                                                                                image.PackageChanged,
		"No solution found when resolving dependencies:\nhint: An index URL could not be queried due to a lack of valid authentication credentials (401 Unauthorized).": image.SiteRefused,
		"Failed to fetch: `http://h/simple/a/`\n  Caused by: HTTP status client error (403 Forbidden) for url (http://h/simple/a/)":                                     image.SiteRefused,
		"code E401\nUnable to authenticate, your authentication token seems to be invalid.":                                                                             image.SiteRefused,
		"Could not transfer artifact g:a:pom:1 from/to central (https://h): status code: 401, reason phrase: Unauthorized (401)":                                        image.SiteRefused,
		"HTTP error 403 while getting https://h/a.whl":                                                                                                                  image.SiteRefused,
		"The \"https://h/packages.json\" file could not be downloaded (HTTP/2 403 )":                                                                                    image.SiteRefused,
		"code E429\n429 Too Many Requests - GET https://h/a":                                                                                                            image.SiteBusy,
		"HTTP status server error (503 Service Unavailable) for url (http://h/simple/a/)":                                                                               image.SiteDown,
		"code E503\n503 Service Unavailable - GET https://h/a":                                                                                                          image.SiteDown,
		"Could not transfer artifact g:a:pom:1 from/to central (https://h): Connect to h:443 [h/1.2.3.4] failed: Connection refused":                                    image.SiteDown,
		"code ECONNREFUSED\nrequest to http://127.0.0.1:1/a failed, reason: connect ECONNREFUSED 127.0.0.1:1":                                                           image.SiteDown,
		"Failed to fetch: `http://127.0.0.1:1/simple/a/`\n  Caused by: error sending request for url\n  Caused by: tcp connect error":                                   image.SiteDown,
		"curl error 6 while downloading https://h/packages.json: Could not resolve host: h":                                                                             image.SiteDown,
		"the source cannot be reached: SocketError: Failed to open TCP connection to h:443 (getaddrinfo: Name or service not known)":                                    image.SiteDown,
		"the source cannot be used: HTTP error 404 Not Found":                                                                                                           image.SiteDown,
		"HTTP error 401 Unauthorized": image.SiteRefused,
		"Failed to extract archive: a-1.0-py3-none-any.whl\n  Caused by: invalid Zip archive":                                                                                image.PackageBad,
		"verifying github.com/google/uuid@v1.6.0: checksum mismatch\ndownloaded: h1:a\ngo.sum:     h1:b":                                                                     image.PackageChanged,
		"go: example.org/a@v1.0.0: reading https://h/example.org/a/@v/v1.0.0.mod: 404 Not Found\nserver response: not found: unknown revision v1.0.0":                        image.PackageGone,
		"go: example.org/a@v1.0.0: invalid version: git ls-remote -q origin: exec: \"git\": executable file not found in $PATH":                                              image.PackageGone,
		"go: example.org/a@v1.0.0: reading https://h/example.org/a/@v/v1.0.0.mod: 403 Forbidden":                                                                             image.SiteRefused,
		"go: example.org/a@v1.0.0: reading https://h/example.org/a/@v/v1.0.0.mod: 429 Too Many Requests":                                                                     image.SiteBusy,
		"go: example.org/a@v1.0.0: reading https://h/example.org/a/@v/v1.0.0.zip: 502 Bad Gateway":                                                                           image.SiteDown,
		"go: example.org/a@v1.0.0: Get \"http://127.0.0.1:1/example.org/a/@v/v1.0.0.mod\": dial tcp 127.0.0.1:1: connect: connection refused":                                image.SiteDown,
		"go: example.org/a@v1.0.0: module lookup disabled by GOPROXY=off":                                                                                                    image.SiteDown,
		"No solution found when resolving dependencies:\nBecause a was not found in the package registry and you require a, we can conclude that your requirements are bad.": 0,
		"code E404\n404 Not Found - GET https://h/a\n'a@*' is not in this registry.":                                                                                         0,
		"Could not find artifact g:a:pom:1 in central (https://h)":                                                                                                           0,
		"something else": 0,
	} {
		err := PackageFailed(&image.ExitError{Args: []string{"tool", "x"}, Status: 1}, "pip", words, asked)
		var e *image.PackageError
		var field *template.FieldError
		var exit *image.ExitError
		switch {
		case want != 0:
			if !errors.As(err, &e) || e.Cause != want || e.Message != words {
				t.Errorf("%q: got %v %+v, want the cause %d", words, err, e, want)
			}
		case asked.MatchString(words):
			if !errors.As(err, &field) || field.Field != "packages.pip" {
				t.Errorf("%q: got %v, want the field", words, err)
			}
		case !errors.As(err, &exit) || exit.Output != words:
			t.Errorf("%q: got %v", words, err)
		}
	}
	if err := PackageFailed(&image.ExitError{Status: 1}, "pip", "Failed to write to the distribution cache\nNo space left on device (os error 28)", asked); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := PackageFailed(unix.ENOSPC, "pip", "Hash mismatch", nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("no tool at fault: %v", err)
	}
}

// TestUnpacked: A faulty package is the package's error; a full disk is not.
func TestUnpacked(t *testing.T) {
	var e *image.PackageError
	for _, err := range []error{ErrTooLarge, store.ErrFileType, store.ErrPath, store.ErrConflict, errors.New("archive: not a tar")} {
		if got := Unpacked(fmt.Errorf("x: %w", err), "npm", "a 1"); !errors.As(got, &e) || e.Cause != image.PackageBad || e.Package != "a 1" || !errors.Is(got, err) {
			t.Errorf("%v: got %v", err, got)
		}
	}
	var none *image.PackageError
	if err := Unpacked(fmt.Errorf("x: %w", unix.ENOSPC), "npm", "a 1"); errors.As(err, &none) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := Unpacked(nil, "npm", "a 1"); err != nil {
		t.Error(err)
	}
}
