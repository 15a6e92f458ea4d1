package image

import (
	"fmt"
	"strings"
)

// DefaultTenant owns functions whose template names no tenant.
const DefaultTenant = "default"

// ValidName reports whether s can name a template, a function or a tenant.
func ValidName(s string) bool { return namePattern.MatchString(s) }

// QualifiedName is a function's identity on an engine: its name in the tenant
// [DefaultTenant], NAME.TENANT in any other. Names have no dots, so that
// [SplitName] takes it apart in one way.
func QualifiedName(name, tenant string) string {
	if tenant == DefaultTenant {
		return name
	}
	return name + "." + tenant
}

// SplitName takes a qualified name apart; one without a dot is in the tenant
// [DefaultTenant], which may be written out as well. The error is a *[FieldError].
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
