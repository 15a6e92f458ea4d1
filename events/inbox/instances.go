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

// Instances are how many of inotify's instances watchers have between them, and how many each
// owner has: a kernel gives a user 128 of them by default, root's other programs included. It
// may be used by several goroutines.
type Instances struct {
	most, each int
	init       func(flags int) (int, error) // inotify_init1(2)

	mu    sync.Mutex
	all   int
	taken map[string]int // by owner
}

var errNoInstance = errors.New("no inotify instance is left")

// NewInstances gives an owner up to each instances, and all owners up to most; 0: half of what
// the kernel gives root (fs.inotify.max_user_instances).
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

// open makes an instance, which close gives back, and says its descriptor: File.Fd would have
// reads of it block. The error says which limit is in the way.
func (i *Instances) open(owner string) (f *os.File, fd int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.taken[owner] >= i.each:
		return nil, 0, fmt.Errorf("%w: %s has %d, which is all it may have", errNoInstance, owner, i.each)
	case i.all >= i.most:
		return nil, 0, fmt.Errorf("%w: all tenants have %d together: raise fs.inotify.max_user_instances and start the engine again", errNoInstance, i.most)
	}
	fd, err = i.init(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w: raise fs.inotify.max_user_instances, which counts all of root's", errNoInstance, err)
	}
	i.all++
	i.taken[owner]++
	return os.NewFile(uintptr(fd), "inotify"), fd, nil
}

// close gives an owner's instance back.
func (i *Instances) close(owner string, f *os.File) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all--
	if i.taken[owner]--; i.taken[owner] == 0 {
		delete(i.taken, owner)
	}
	return f.Close()
}
