package image

// DefaultTenant owns functions whose template names no tenant.
const DefaultTenant = "default"

// ValidName reports whether s can name a template, a function or a tenant.
func ValidName(s string) bool { return namePattern.MatchString(s) }
