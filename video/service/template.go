package service

import (
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// templateFiles is the transcoder's template directory. make build puts the program in its code/.
//
//go:embed all:template
var templateFiles embed.FS

// errNotBuilt reports that this program was compiled without the transcoder.
var errNotBuilt = errors.New("the transcoder was not built into this program: run make build")

// templateTimeout is the template's line for the timeout of an event.
const templateTimeout = "timeout: 10m"

// mostTimeout is the longest timeout in a template.
const mostTimeout = 24 * time.Hour

// Template writes the transcoder's template directory to the existing directory dir. timeout
// limits each event, up to mostTimeout.
func Template(dir string, timeout time.Duration) error {
	if _, err := fs.Stat(templateFiles, "template/code/transcoder"); err != nil {
		return errNotBuilt
	}
	for _, f := range []struct {
		name string
		mode os.FileMode
	}{{"fret.yaml", 0o644}, {"code/transcoder", 0o755}} {
		b, err := templateFiles.ReadFile("template/" + f.name)
		if err != nil {
			return err
		}
		if f.name == "fret.yaml" {
			b = bytes.Replace(b, []byte(templateTimeout), []byte("timeout: "+min(timeout, mostTimeout).String()), 1)
		}
		path := filepath.Join(dir, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, f.mode); err != nil {
			return err
		}
	}
	return nil
}
