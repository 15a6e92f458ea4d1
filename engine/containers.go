package engine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// containers is the table of all containers. names includes the names of containers under
// construction.
type containers struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*container
	names map[string]*container // nil value during construction

	// making counts, by image, the containers under construction. leaving counts the removals of
	// the image under way. Each side checks the count of the other after its own increment.
	making, leaving map[store.Digest]int
}

// hold keeps an image until release is called, while a container is made from the image. Error:
// fs.ErrNotExist if the image is removed, or about to be.
func (e *Engine) hold(d store.Digest) (release func(), err error) {
	t := &e.containers
	t.mu.Lock()
	leaves := t.leaving[d] > 0
	if !leaves {
		t.making[d]++
	}
	t.mu.Unlock()
	if leaves {
		return nil, fmt.Errorf("image %s is being removed: %w", d, fs.ErrNotExist)
	}
	release = func() { t.end(t.making, d) }
	if !e.cfg.Store.Use(d) {
		release()
		return nil, fmt.Errorf("image %s is being removed: %w", d, fs.ErrNotExist)
	}
	return release, nil
}

func (t *containers) end(count map[store.Digest]int, d store.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if count[d]--; count[d] == 0 {
		delete(count, d)
	}
}

// whileUnused calls remove unless the image is in use (store.ErrInUse). ref is the image's name
// in errors. During the call containers can be made from all images except this one.
func (e *Engine) whileUnused(ref string, d store.Digest, remove func() error) error {
	inUse := func() error {
		if by := e.imageUsers()[d]; by != "" {
			return fmt.Errorf("remove image %s: %w by %s", ref, store.ErrInUse, by)
		}
		return nil
	}
	if err := inUse(); err != nil { // check first: a removal that fails anyway must not refuse a new container
		return err
	}
	t := &e.containers
	t.mu.Lock()
	t.leaving[d]++
	t.mu.Unlock()
	defer t.end(t.leaving, d)
	if err := inUse(); err != nil {
		return err
	}
	return remove()
}

// openContainers reads the records of the last engine and removes its incomplete directories.
func (e *Engine) openContainers() error {
	t := &e.containers
	t.dir = filepath.Join(e.cfg.StateDir, "containers")
	t.byID, t.names = map[string]*container{}, map[string]*container{}
	t.making, t.leaving = map[store.Digest]int{}, map[store.Digest]int{}
	if err := errors.Join(os.MkdirAll(t.dir, 0o700), os.Chmod(t.dir, 0o700)); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	list, err := os.ReadDir(t.dir)
	if err != nil {
		return fmt.Errorf("read containers: %w", err)
	}
	for _, entry := range list {
		if !isContainerID(entry.Name()) {
			continue
		}
		if err := e.loadContainer(entry.Name()); err != nil {
			// One damaged record must not keep the other containers from running.
			e.log.Error("container not loaded", "container", entry.Name(), "error", err)
		}
	}
	all := t.all()
	slices.SortFunc(all, func(a, b *container) int { return a.c.Created.Compare(b.c.Created) })
	for _, c := range all {
		c.row = e.boxes.AddResting(c.c.sandbox())
	}
	return nil
}

func (e *Engine) loadContainer(id string) error {
	dir := filepath.Join(e.containers.dir, id)
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return e.removeContainerDir(dir)
	}
	if err != nil {
		return err
	}
	var rec Container
	if err := json.Unmarshal(text, &rec); err != nil {
		return fmt.Errorf("read config.json: %w", err)
	}
	if rec.ID != id {
		return fmt.Errorf("config.json is of %q", rec.ID)
	}
	died := rec.State == StateRunning
	if died {
		rec.State, rec.Finished = StateExited, time.Now().UTC()
		rec.Exit = &sandbox.ExitStatus{Code: -1, Signal: int(unix.SIGKILL)} // killed with its engine
	}
	if rec.State == StateExited && rec.Config.AutoRemove {
		return e.removeContainerDir(dir)
	}
	c, err := e.newContainer(rec)
	if err != nil {
		return err
	}
	e.containers.byID[id], e.containers.names[rec.Config.Name] = c, c
	if died {
		return c.save(rec)
	}
	return nil
}

// find returns the container with this id, name, or unambiguous prefix of an id.
func (t *containers) find(ref string) (*container, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.byID[ref]; c != nil {
		return c, nil
	}
	if c := t.names[ref]; c != nil {
		return c, nil
	}
	return live.ByPrefix(t.byID, "container", ref)
}

func (t *containers) all() []*container {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// reserve takes a container's name, or a generated name if rec has none.
func (t *containers) reserve(rec *Container) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name := rec.Config.Name; name != "" {
		if _, taken := t.names[name]; taken {
			return fmt.Errorf("%w: another container is named %q: remove or rename the other container", ErrNameTaken, name)
		}
	}
	for i := 0; rec.Config.Name == ""; i++ {
		name := madeUpName(i)
		if _, taken := t.names[name]; !taken {
			rec.Config.Name = name
		}
	}
	t.names[rec.Config.Name] = nil
	return nil
}

// save writes a record durably.
func (c *container) save(rec Container) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := writeDurable(filepath.Join(c.dir, "config.json"), text); err != nil {
		return fmt.Errorf("save container: %w", err)
	}
	return nil
}

// writeDurable replaces a file atomically and durably.
func writeDurable(name string, text []byte) (err error) {
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func isContainerID(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}

// Container describes a container by id, name, or prefix of an id. Errors: fs.ErrNotExist,
// store.ErrAmbiguous.
func (e *Engine) Container(ref string) (*Container, error) {
	c, err := e.containers.find(ref)
	if err != nil {
		return nil, err
	}
	return c.describe(), nil
}

// Containers lists the running containers, newest first; with all also the stopped. It reads no
// file.
func (e *Engine) Containers(all bool) []*Container {
	var out []*Container
	for _, c := range e.containers.all() {
		if d := c.describe(); all || d.State == StateRunning {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *Container) int {
		if n := b.Created.Compare(a.Created); n != 0 {
			return n
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}
