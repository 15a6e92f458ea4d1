package template

import (
	"errors"
	"strings"
	"testing"
)

// TestSplitName: A function's name splits into name and tenant, and joins to the same name.
func TestSplitName(t *testing.T) {
	long := strings.Repeat("n", 63)
	for _, test := range []struct{ qualified, name, tenant, again string }{
		{"hello", "hello", "default", "hello"},
		{"hello.acme", "hello", "acme", "hello.acme"},
		{"hello.default", "hello", "default", "hello"},
		{"default", "default", "default", "default"},
		{long + "." + long, long, long, long + "." + long},
	} {
		name, tenant, err := SplitName(test.qualified)
		if err != nil || name != test.name || tenant != test.tenant {
			t.Errorf("SplitName(%q) = %q, %q, %v; want %q, %q", test.qualified, name, tenant, err, test.name, test.tenant)
		}
		if again := QualifiedName(name, tenant); again != test.again {
			t.Errorf("QualifiedName(%q, %q) = %q, want %q", name, tenant, again, test.again)
		}
	}
	for _, bad := range []string{"", ".", "hello.", ".acme", "a.b.c", "Hello", "hello.Acme", "hello/acme", "_temporary", "hello.-a", long + "n", "hello@3"} {
		var field *FieldError
		if name, tenant, err := SplitName(bad); !errors.As(err, &field) {
			t.Errorf("SplitName(%q) = %q, %q, %v; want a *FieldError", bad, name, tenant, err)
		}
	}
}

// FuzzSplitName: A split name joins to the same name again and never means two functions.
func FuzzSplitName(f *testing.F) {
	for _, s := range []string{"hello", "hello.acme", "hello.default", "a.b.c", "", "\x00.a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, tenant, err := SplitName(s)
		if err != nil {
			return
		}
		qualified := QualifiedName(name, tenant)
		if qualified != s && s != name+"."+DefaultTenant {
			t.Errorf("%q became %q", s, qualified)
		}
		if n, o, err := SplitName(qualified); err != nil || n != name || o != tenant {
			t.Errorf("%q is %q of %q, and %q is %q of %q (%v)", s, name, tenant, qualified, n, o, err)
		}
	})
}
