package template

import (
	"fmt"
	"strings"
)

// DefaultTenant owns functions whose template names no tenant.
const DefaultTenant = "default"

// ValidName reports whether s can name a template, a function or a tenant.
func ValidName(s string) bool { return namePattern.MatchString(s) }

// QualifiedName returns a function's identity on an engine: the name in the tenant [DefaultTenant],
// NAME.TENANT in any other. Names have no dots, so [SplitName] is unambiguous.
func QualifiedName(name, tenant string) string {
	if tenant == DefaultTenant {
		return name
	}
	return name + "." + tenant
}

// SplitName splits a qualified name. A name without a dot is in the tenant [DefaultTenant], which
// may also be written out. The error is a *[FieldError].
func SplitName(qualified string) (name, tenant string, err error) {
	name, tenant, dotted := strings.Cut(qualified, ".")
	if !dotted {
		tenant = DefaultTenant
	}
	if !ValidName(name) || !ValidName(tenant) {
		return "", "", &FieldError{Field: "name", Message: fmt.Sprintf("%q is not a function name: lower-case letters, digits and dashes, 63 at most; in another tenant than %s NAME.TENANT", qualified, DefaultTenant)}
	}
	return name, tenant, nil
}
