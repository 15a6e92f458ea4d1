package image

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/template"
)

// PackageError says that a package cannot be fetched, or is not as expected. Neither the template
// (a [template.FieldError]) nor the engine is at fault.
type PackageError struct {
	Site    string // as below the template's packages: "deb"
	Place   string // names the packages, for a site without a key in the template; "": "packages.SITE"
	Package string // "left-pad 1.3.0"; "" if Message names the package
	Cause   PackageCause
	Message string // text of the site or its tool, without passwords; "": the text of Err
	Step    string // the next step, if the ecosystem's differs from the cause's; "": the cause's
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
	text := cmp.Or(e.Place, "packages."+e.Site) + ": "
	if e.Package != "" {
		text += e.Package + ": "
	}
	if e.Message == "" && e.Err != nil {
		return text + e.Err.Error()
	}
	return text + e.Message
}

func (e *PackageError) Unwrap() error { return e.Err }

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
	if e.Step != "" {
		return e.Step
	}
	switch e.Cause {
	case PackageChanged:
		if e.Site == "deb" {
			return "the package was not kept: the archive or a proxy is damaged or in an update: try again later, or use another mirror (docs/configuration.md)"
		}
		return "the package was not kept: if the author republished the version, delete " + LockFile + " and build again; if not, ask the operator of the package site"
	case PackageBad:
		return "the package was not kept: use another version"
	case PackageGone:
		return "delete " + LockFile + " to resolve again, or add the package's site to the configuration of the engine's host (docs/configuration.md)"
	case PackageUnbuilt:
		return "use another version, or check the needs of the package's build (docs/packages.md)"
	case SiteRefused:
		return "add the site's credentials to the engine's host (docs/configuration.md)"
	case SiteBusy:
		return "the site limits requests, and several attempts were made: try again later"
	case SiteDown:
		return "check the connection of the engine's host to the site, with proxies and mirrors, and try again: fetched packages are kept"
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
	var field *template.FieldError
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
