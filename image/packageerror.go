package image

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/outward"
)

// PackageError says that a package cannot be fetched, or is not as expected. Neither the template
// (a [FieldError]) nor the engine is at fault.
type PackageError struct {
	Site    string // as below the template's packages: "pip", "deb"; "go" for modules in go.mod
	Package string // "left-pad 1.3.0"; "" if Message names the package
	Cause   PackageCause
	Message string // text of the site or its tool, without passwords; "": the text of Err
	Err     error  // nil for none
}

// PackageCause is the cause of a [PackageError].
type PackageCause int

// The causes.
const (
	PackageChanged PackageCause = iota + 1 // hash or signature differs from the pinned one: nothing is kept
	PackageBad                             // breaks the rules or limits of its format: nothing is kept
	PackageGone                            // pinned, but the site does not have it
	PackageUnbuilt                         // the package's own build failed
	SiteRefused                            // the site wants other credentials
	SiteBusy                               // the site wants fewer requests
	SiteDown                               // the site cannot be reached, or fails
)

// OfSite reports whether the site, and not the package, is at fault.
func (c PackageCause) OfSite() bool { return c >= SiteRefused }

// SiteStatus returns the cause of a site's HTTP status for a pinned package.
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

// siteGo is the source of Go modules. go.sum is their lock.
const siteGo = "go"

// Code returns [failure.PackageSite] or [failure.Package], and the code of an
// [outward.RefusedError].
func (e *PackageError) Code() failure.Code {
	var refused *outward.RefusedError
	switch {
	case errors.As(e.Err, &refused):
		return refused.Code()
	case e.Cause.OfSite():
		return failure.PackageSite
	}
	return failure.Package
}

// Next returns the next step for the user.
func (e *PackageError) Next() string {
	if refused := (*outward.RefusedError)(nil); errors.As(e.Err, &refused) {
		return refused.Next()
	}
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

// Local reports whether an error is the engine's own (a full disk, a cancelled build), and not
// about the fetched data.
func Local(err error) bool {
	var path *fs.PathError
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EIO) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &path)
}

// debianFault turns a fault of Debian packages into a [PackageError].
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
