package inbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Instances limits the inotify instances of all watchers together and of each owner. The kernel
// gives a user 128 by default, and all programs of root share them. Instances is safe for
// concurrent use.
type Instances struct {
	most, each int
	init       func(flags int) (int, error) // inotify_init1(2)

	mu    sync.Mutex
	all   int
	taken map[string]int // by owner
}

var errNoInstance = errors.New("no inotify instance is left")

// NewInstances allows each instances for an owner and most for all owners. 0 for most means half of
// the limit for root (fs.inotify.max_user_instances).
func NewInstances(most, each int) *Instances {
	if most == 0 {
		most = 64
		if text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances"); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				most = n / 2
			}
		}
	}
	return &Instances{most: most, each: each, init: unix.InotifyInit1, taken: map[string]int{}}
}

// open creates an instance and also returns its descriptor, because File.Fd would make reads block.
// The caller returns the instance by close. The error names the limit that was reached.
func (i *Instances) open(owner string) (f *os.File, fd int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.taken[owner] >= i.each:
		return nil, 0, fmt.Errorf("%w: %s has all of its %d instances", errNoInstance, owner, i.each)
	case i.all >= i.most:
		return nil, 0, fmt.Errorf("%w: all tenants have %d together: raise fs.inotify.max_user_instances and start the engine again", errNoInstance, i.most)
	}
	fd, err = i.init(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w: raise fs.inotify.max_user_instances, a limit for all processes of root", errNoInstance, err)
	}
	i.all++
	i.taken[owner]++
	return os.NewFile(uintptr(fd), "inotify"), fd, nil
}

// close closes an instance and returns it to the owner's account.
func (i *Instances) close(owner string, f *os.File) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all--
	if i.taken[owner]--; i.taken[owner] == 0 {
		delete(i.taken, owner)
	}
	return f.Close()
}
