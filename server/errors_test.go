package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/sandbox"
)

// If the host cannot provide a limit of a command, the error blames the template and has the whole
// reason.
func TestLimitStatus(t *testing.T) {
	got := errorOf(fmt.Errorf("run: %w", &sandbox.LimitError{Limit: "files", Controller: "RLIMIT_NOFILE", Host: "web1", Want: 2, Most: 1}))
	if got.Status != http.StatusUnprocessableEntity || got.Code != api.CodeTemplate || !strings.Contains(got.Message, "host web1") {
		t.Errorf("got %+v with status %d, want 422 and the host", got, got.Status)
	}
}

// TestUploadTooLarge: an upload over the limit of bytes gets the limit and the next step, not the
// reason why the cut archive cannot be read.
func TestUploadTooLarge(t *testing.T) {
	got := errorOf(uploadError(fmt.Errorf("%w: %w", unpack.ErrArchive, &http.MaxBytesError{Limit: 5})))
	if got.Status != http.StatusRequestEntityTooLarge || got.Code != failure.BodyTooLarge || got.Message != "the body is over the limit of 5 bytes" || !strings.Contains(got.Next, ".freignore") {
		t.Errorf("got %+v with status %d, want 413 and the limit", got, got.Status)
	}
}

// A build under another tenant's image name, or on another tenant's base, gets an error with the
// next step.
func TestImageNameStatus(t *testing.T) {
	got := errorOf(fmt.Errorf("build f: %w", &build.ImageNameError{Name: "f:1"}))
	if got.Status != http.StatusConflict || got.Code != api.CodeNameTaken || got.Message != "build f: the image's name f:1 is taken" || !strings.Contains(got.Next, "template's id or version") {
		t.Errorf("got %+v with status %d", got, got.Status)
	}
	got = errorOf(fmt.Errorf("build f: base oci:g:1: %w", build.ErrOthersImage))
	if got.Status != http.StatusUnprocessableEntity || got.Code != api.CodeTemplate || got.Next == "" {
		t.Errorf("another tenant's function as the base: got %+v with status %d", got, got.Status)
	}
}

// Errors of packages and of package sites have their own codes, and each cause has a next step. A
// lack in the engine, such as a full disk, stays an error of the engine.
func TestPackageStatus(t *testing.T) {
	for cause, want := range map[image.PackageCause]struct {
		status int
		code   api.Code
		next   string
	}{
		image.PackageChanged: {http.StatusUnprocessableEntity, api.CodePackage, "delete fret.lock"},
		image.PackageBad:     {http.StatusUnprocessableEntity, api.CodePackage, "another version"},
		image.PackageGone:    {http.StatusUnprocessableEntity, api.CodePackage, "resolve again"},
		image.PackageUnbuilt: {http.StatusUnprocessableEntity, api.CodePackage, "package's build"},
		image.SiteRefused:    {http.StatusBadGateway, api.CodePackageSite, "credentials"},
		image.SiteBusy:       {http.StatusBadGateway, api.CodePackageSite, "later"},
		image.SiteDown:       {http.StatusBadGateway, api.CodePackageSite, "connection of the engine's host"},
	} {
		got := errorOf(fmt.Errorf("build f: %w", &image.PackageError{Site: "npm", Package: "a 1.0.0", Cause: cause, Err: errors.New("its words")}))
		if got.Status != want.status || got.Code != want.code || !strings.Contains(got.Next, want.next) || got.Message != "build f: packages.npm: a 1.0.0: its words" {
			t.Errorf("cause %d: got %+v with status %d, want %+v", cause, got, got.Status, want)
		}
	}
	if got := errorOf(fmt.Errorf("packages.npm: a 1.0.0: %w", unix.ENOSPC)); got.Code != api.CodeInsufficientDisk {
		t.Errorf("a full disk: got %+v", got)
	}
}
