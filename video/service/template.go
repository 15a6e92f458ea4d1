package service

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The template directory of the transcoder; make build puts the program in its code/.
//
//go:embed all:template
var templateFiles embed.FS

// errNotBuilt says that this program was compiled without the transcoder.
var errNotBuilt = errors.New("the transcoder was not built into this program: run make build")

// Template writes the transcoder's template directory to dir, which exists.
func Template(dir string) error {
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
