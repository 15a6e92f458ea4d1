package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// Locked is the lock's section of packages.npm. It is valid while Request is the requests'
// [template.Requests.Key]. PackageLock is npm's own package-lock.json (v3) without "resolved"
// members.
type Locked struct {
	Request     []string        `json:"request"`
	PackageLock json.RawMessage `json:"package_lock"`
}

// Section returns an empty section.
func (Site) Section() image.Section { return &Locked{} }

// Answers compares the keys of the requests.
func (l *Locked) Answers(r *template.Requests) bool { return slices.Equal(l.Request, r.Key()) }

// Check refuses names of hosts.
func (l *Locked) Check() error {
	var v any
	if err := json.Unmarshal(l.PackageLock, &v); err != nil {
		return fmt.Errorf("package_lock: %w", err)
	}
	if _, ok := v.(map[string]any); !ok {
		return errors.New("package_lock is not an object")
	}
	if hasMember(v, "resolved") {
		return errors.New(`package_lock holds "resolved" members: a lock names no hosts`)
	}
	return nil
}

func hasMember(v any, name string) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if key == name || hasMember(below, name) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(below any) bool { return hasMember(below, name) })
	}
	return false
}
