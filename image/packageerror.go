package image

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/fre-engine/fre/image/debian"
)

// PackageError says that a package cannot be had, or is not what it should be:
// neither what the template asks (a [FieldError]) nor the engine is at fault.
type PackageError struct {
	Site    string // its name, as below the template's packages: "pip", "deb"; "go" of the modules that go.mod names
	Package string // "left-pad 1.3.0"; "" where Message says which
	Cause   PackageCause
	Message string // in the words of the site or its tool, without passwords; "" for those of Err
	Err     error  // nil where there is none
}

// PackageCause is what a [PackageError] is about.
type PackageCause int

// The causes.
const (
	PackageChanged PackageCause = iota + 1 // it has another hash or signature than is pinned: nothing of it is kept
	PackageBad                             // it breaks the rules or limits of its format: nothing of it is kept
	PackageGone                            // it is pinned, and its site does not have it
	PackageUnbuilt                         // its own build failed
	SiteRefused                            // its site wants other credentials
	SiteBusy                               // its site wants fewer requests
	SiteDown                               // its site cannot be reached, or fails
)

// OfSite says whether the site is at fault, rather than the package.
func (c PackageCause) OfSite() bool { return c >= SiteRefused }

// SiteStatus is the cause behind an HTTP status with which a site answers for a package
// that is pinned.
func SiteStatus(code int) PackageCause {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return SiteRefused
	case http.StatusNotFound, http.StatusGone:
		return PackageGone
	case http.StatusTooManyRequests:
		return SiteBusy
	}
	return SiteDown
}

func (e *PackageError) Error() string {
	text := "packages." + e.Site + ": "
	if e.Site == siteGo {
		text = "go.mod: "
	}
	if e.Package != "" {
		text += e.Package + ": "
	}
	if e.Message == "" && e.Err != nil {
		return text + e.Err.Error()
	}
	return text + e.Message
}

func (e *PackageError) Unwrap() error { return e.Err }

// siteGo is where modules of Go come from. go.sum is their lock.
const siteGo = "go"

// Next is what the user can do about it.
func (e *PackageError) Next() string {
	switch e.Cause {
	case PackageChanged:
		if e.Site == siteGo {
			return "nothing of it was kept: if it was published anew on purpose, run go mod tidy without its lines of go.sum; if not, ask who runs the module proxy"
		}
		if e.Site == "deb" {
			return "nothing of it was kept: the archive or a proxy before it is damaged or being renewed: try again later, or use another mirror (docs/configuration.md)"
		}
		return "nothing of it was kept: if it was published anew on purpose, delete " + LockFile + " and build again; if not, ask who runs the package site"
	case PackageBad:
		return "nothing of it was kept: ask for another version of it"
	case PackageGone:
		if e.Site == siteGo {
			return "go get another version beside go.mod, or have GOPROXY of the engine's host name the proxy that has it, and GOPRIVATE what no checksum database knows: no build has git (docs/go.md)"
		}
		return "delete " + LockFile + " to resolve anew, or add the site that has it to the configuration of the engine's host (docs/configuration.md)"
	case PackageUnbuilt:
		if e.Site == "npm" {
			return "see what its script lacks, which runs without network and credentials (docs/packages.md), or ask for another version of it"
		}
		return "ask for a version that has a wheel for this base, or see what its build lacks (docs/packages.md)"
	case SiteRefused:
		return "the engine's host has no credentials that the site accepts: see docs/configuration.md for where they stand"
	case SiteBusy:
		return "the site limits requests, and several attempts were made: try again later"
	case SiteDown:
		return "see whether the engine's host reaches the site, by its own configuration of proxies and mirrors, and try again: what was fetched is kept"
	}
	return ""
}

// Local says whether an error is the engine's own (a full disk, a build that was
// cancelled) rather than one of what was fetched.
func Local(err error) bool {
	var path *fs.PathError
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EIO) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &path)
}

// debianFault makes a [PackageError] of what is wrong with Debian packages.
func debianFault(err error) error {
	var known *PackageError
	var field *FieldError
	var fetch *debian.FetchError
	if errors.As(err, &known) || errors.As(err, &field) {
		return err
	}
	var cause PackageCause
	switch {
	case errors.Is(err, debian.ErrHash), errors.Is(err, debian.ErrSignature), errors.Is(err, debian.ErrExpired):
		cause = PackageChanged
	case errors.Is(err, debian.ErrUnsafe):
		cause = PackageBad
	case errors.Is(err, debian.ErrUnresolved):
		cause = PackageGone
	case Local(err):
		return err
	case errors.As(err, &fetch):
		cause = SiteStatus(fetch.Status)
	default:
		return err
	}
	return &PackageError{Site: "deb", Cause: cause, Err: err}
}
