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

// The template directory of the transcoder; make build puts the program in its code/.
//
//go:embed all:template
var templateFiles embed.FS

// errNotBuilt says that this program was compiled without the transcoder.
var errNotBuilt = errors.New("the transcoder was not built into this program: run make build")

// templateTimeout is what the template says of its events' timeout.
const templateTimeout = "timeout: 10m"

// mostTimeout is the longest that a template may say.
const mostTimeout = 24 * time.Hour

// Template writes the transcoder's template directory to dir, which exists. An event of it may
// take timeout, as far as templates can say so.
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
