package container

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
)

// containers is the table of all containers. names includes the names of containers under
// construction.
type containers struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*container
	names map[string]*container // nil value during construction
}

// openContainers opens the containers in dir.
func (m *Manager) openContainers(dir string) error {
	t := &m.containers
	t.dir = dir
	t.byID, t.names = map[string]*container{}, map[string]*container{}
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
		if err := m.loadContainer(entry.Name()); err != nil {
			// One damaged record must not keep the other containers from running.
			m.log.Error("container not loaded", "container", entry.Name(), "error", err)
		}
	}
	all := t.all()
	slices.SortFunc(all, func(a, b *container) int { return a.c.Created.Compare(b.c.Created) })
	for _, c := range all {
		c.row = m.boxes.AddResting(c.c.sandbox())
	}
	return nil
}

func (m *Manager) loadContainer(id string) error {
	dir := filepath.Join(m.containers.dir, id)
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return m.removeContainerDir(dir)
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
	died := rec.State == live.StateRunning
	if died {
		rec.State, rec.Finished = live.StateExited, time.Now().UTC()
		rec.Exit = &sandbox.ExitStatus{Code: -1, Signal: int(unix.SIGKILL)} // killed with its engine
	}
	if rec.State == live.StateExited && rec.Config.AutoRemove {
		return m.removeContainerDir(dir)
	}
	c, err := m.newContainer(rec)
	if err != nil {
		return err
	}
	m.containers.byID[id], m.containers.names[rec.Config.Name] = c, c
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
			return fmt.Errorf("%w: another container is named %q: remove or rename the other container", live.ErrNameTaken, name)
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
func (m *Manager) Container(ref string) (*Container, error) {
	c, err := m.containers.find(ref)
	if err != nil {
		return nil, err
	}
	return c.describe(), nil
}

// Containers lists the running containers, newest first; with all also the stopped. It reads no
// file.
func (m *Manager) Containers(all bool) []*Container {
	var out []*Container
	for _, c := range m.containers.all() {
		if d := c.describe(); all || d.State == live.StateRunning {
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
