package linux_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/linux"
)

func TestSameMemory(t *testing.T) {
	fretest.RequireRoot(t) // required for access to the parent
	if same, err := linux.SameMemory(os.Getpid(), os.Getpid()); err != nil || !same {
		t.Errorf("this process and itself: got %v, error %v", same, err)
	}
	if same, err := linux.SameMemory(os.Getpid(), os.Getppid()); err != nil || same {
		t.Errorf("this process and its parent: got %v, error %v", same, err)
	}
	if _, err := linux.SameMemory(os.Getpid(), 1<<30); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is not there: got error %v", err)
	}
}
