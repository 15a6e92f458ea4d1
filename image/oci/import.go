package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fre-engine/fre/store"
)

// ImportOptions adjust Import.
type ImportOptions struct {
	Options
	Name    string   // "name:version"; "" for none
	Changes []string // Dockerfile instructions for the configuration, as docker import --change
	Message string   // for the image's history
	// Platform is the platform of the file system, as in [CheckPlatform].
	Platform string
}

// Import makes an image with one layer from a plain archive of a file system, packed or not.
// Errors: as [Load], and ErrChange.
func Import(ctx context.Context, s *store.Store, r io.Reader, o ImportOptions) (*store.Image, error) {
	img, err := importPlain(ctx, s, r, o)
	if err != nil {
		return nil, fmt.Errorf("import: %w", reason(ctx, err))
	}
	return img, nil
}

func importPlain(ctx context.Context, s *store.Store, r io.Reader, o ImportOptions) (*store.Image, error) {
	p, err := parsePlatform(o.Platform)
	if err != nil {
		return nil, err
	}
	f := v1.ConfigFile{Architecture: p.Architecture, OS: p.OS, Variant: p.Variant, Created: v1.Time{Time: time.Now().UTC()}}
	for _, c := range o.Changes {
		if err := change(&f.Config, c); err != nil {
			return nil, err
		}
	}
	var names []string
	if o.Name != "" {
		names = append(names, o.Name)
	}
	if err := checkNames(names); err != nil {
		return nil, err
	}
	defer s.Hold()()
	j := newJob(s, o.Options)
	layer, err := j.unpack(ctx, &notEmpty{r: r})
	if err != nil {
		return nil, err
	}
	diff, err := v1.NewHash(string(layer.Diff))
	if err != nil {
		return nil, err
	}
	f.RootFS = v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diff}}
	f.History = []v1.History{{Created: f.Created, CreatedBy: "fre: import", Comment: o.Message}}
	config, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return j.bring(ctx, source{config: config, layers: []blob{{}}}, names) // the layer is in the store already
}

// notEmpty refuses an empty archive: it is more often a mistake than an empty image.
type notEmpty struct {
	r    io.Reader
	some bool
}

func (n *notEmpty) Read(p []byte) (int, error) {
	got, err := n.r.Read(p)
	if n.some = n.some || got > 0; err == io.EOF && !n.some {
		return 0, fmt.Errorf("%w: empty", ErrArchive)
	}
	return got, err
}

// change applies one Dockerfile instruction to a configuration.
func change(c *v1.Config, line string) error {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	bad := func(why string) error { return fmt.Errorf("%w %q: %s", ErrChange, line, why) }
	if rest == "" {
		return bad("the instruction has no argument")
	}
	switch strings.ToUpper(word) {
	case "CMD":
		c.Cmd = command(rest)
	case "ENTRYPOINT":
		c.Entrypoint = command(rest)
	case "USER":
		c.User = rest
	case "WORKDIR":
		c.WorkingDir = rest
	case "STOPSIGNAL":
		c.StopSignal = rest
	case "ENV", "LABEL":
		key, value, err := parsePair(rest)
		if err != nil {
			return bad(err.Error())
		}
		if strings.EqualFold(word, "ENV") {
			c.Env = setEnv(c.Env, key, value)
		} else {
			set(&c.Labels, key, value)
		}
	case "EXPOSE":
		for port := range strings.FieldsSeq(rest) {
			if !strings.Contains(port, "/") {
				port += "/tcp"
			}
			set(&c.ExposedPorts, port, struct{}{})
		}
	case "VOLUME":
		for _, v := range parseVolumes(rest) {
			set(&c.Volumes, v, struct{}{})
		}
	default:
		return bad("use CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME or WORKDIR")
	}
	return nil
}

// set sets a key of a map, which it makes first if the map is nil.
func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// parsePair parses KEY=VALUE, or KEY VALUE with the rest of the line as the value.
func parsePair(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	if ok && !isWord(value) {
		return "", "", errors.New("write KEY=VALUE, a single pair for each instruction, with quotes around a value with spaces")
	}
	if !ok {
		key, value, ok = strings.Cut(s, " ")
	}
	if !ok || key == "" || strings.ContainsAny(key, " \t\"'") {
		return "", "", errors.New("write KEY=VALUE")
	}
	return key, unquote(strings.TrimSpace(value)), nil
}

// parseVolumes parses a JSON list or words.
func parseVolumes(s string) []string {
	var list []string
	if json.Unmarshal([]byte(s), &list) != nil {
		return strings.Fields(s)
	}
	return list
}

// command parses a JSON list, or returns a command line for sh.
func command(s string) []string {
	var list []string
	if d := json.NewDecoder(bytes.NewReader([]byte(s))); d.Decode(&list) == nil && len(list) > 0 {
		return list
	}
	return []string{"/bin/sh", "-c", s}
}

// isWord reports whether s is a single shell word.
func isWord(s string) bool {
	if s != "" && (s[0] == '"' || s[0] == '\'') {
		return strings.IndexByte(s[1:], s[0]) == len(s)-2
	}
	return !strings.ContainsAny(s, " \t")
}

func unquote(s string) string {
	if n := len(s); n >= 2 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}

func setEnv(env []string, key, value string) []string {
	for i, v := range env {
		if strings.HasPrefix(v, key+"=") {
			env[i] = key + "=" + value
			return env
		}
	}
	return append(env, key+"="+value)
}
