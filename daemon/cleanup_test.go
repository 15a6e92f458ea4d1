package daemon

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCleanup(t *testing.T) {
	var c cleanup
	var ran []string
	for _, name := range []string{"store", "engine", "socket"} {
		c.add(func() error {
			ran = append(ran, name)
			return errors.New(name)
		})
	}
	err := errors.New("no port")
	c.run(&err)
	if diff := cmp.Diff([]string{"socket", "engine", "store"}, ran); diff != "" {
		t.Error(diff)
	}
	if want := "no port\nsocket\nengine\nstore"; err.Error() != want {
		t.Errorf("errors %q, want %q", err, want)
	}
	if err := c.Close(); err != nil || len(ran) != 3 {
		t.Errorf("the second time: %v, %q", err, ran)
	}
}
