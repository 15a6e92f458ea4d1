package install

import (
	"errors"
	"strings"
	"testing"
)

// TestCounter: The counter bounds the bytes of each package and the files of all packages, whatever
// size an archive states.
func TestCounter(t *testing.T) {
	all := NewCounter()
	one := all.Package("one")
	if err := one.Add(maxPackageBytes); err != nil {
		t.Fatal(err)
	}
	if err := one.Add(1); !errors.Is(err, ErrTooLarge) || !strings.HasPrefix(err.Error(), "one unpacks") {
		t.Errorf("a byte too many: %v", err)
	}
	if err := one.Add(1 << 62); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a size that lies: %v", err)
	}
	two, n := all.Package("two"), 0
	for ; two.Add(0) == nil; n++ {
	}
	if n != maxPackageEntries {
		t.Errorf("%d entries", n)
	}
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = all.Package("more").Add(maxPackageBytes)
	}
	if !errors.Is(err, ErrTooLarge) || !strings.HasPrefix(err.Error(), "all packages") {
		t.Errorf("many packages: %v", err)
	}
}
