package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/internal/command"
)

// scaffold holds a directory for each language, and "common", whose files every language without a
// file of the same name gets. NAME in fret.yaml and README.md becomes the id. A suffix .txt is
// removed: it hides sources from this repository's compiler. ".next" is no file of the template,
// but a command to run before the deployment, with DIR for the template's directory.
//
//go:embed all:scaffold
var scaffold embed.FS

const (
	scaffoldCommon = "common"
	scaffoldNext   = ".next"
)

var templateID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// scaffoldKinds returns the languages, sorted.
func scaffoldKinds() []string {
	entries, err := scaffold.ReadDir("scaffold")
	if err != nil {
		panic(err) // the directory is part of the program
	}
	var kinds []string
	for _, e := range entries {
		if e.Name() != scaffoldCommon {
			kinds = append(kinds, e.Name())
		}
	}
	return kinds
}

func newCommand() *cobra.Command {
	kinds := scaffoldKinds()
	return &cobra.Command{
		Use:   "new LANGUAGE DIR",
		Short: "Create a template",
		Long: fmt.Sprintf(`Create a template in the directory DIR, which must be empty or missing. The template has
code, fret.yaml, and a test with an event and the expected answer. The template's id is
the last part of DIR. fre prints the next steps.

LANGUAGE is one of %s. The language native is a Go program, compiled before the
deployment.`, strings.Join(kinds, ", ")),
		Example: `  fre new python hello`,
		Args:    command.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return kinds, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, dir := args[0], args[1]
			if !slices.Contains(kinds, kind) {
				return command.Usage(fmt.Errorf("unknown language %q: give one of %s", kind, strings.Join(kinds, ", ")))
			}
			absolute, err := filepath.Abs(dir)
			if err != nil {
				return err
			}
			id := filepath.Base(absolute)
			if !templateID.MatchString(id) {
				return command.Usage(fmt.Errorf("%q cannot be a function's name: use lower-case letters, digits and dashes", id))
			}
			if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
				return fmt.Errorf("%s is not empty", dir)
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			next, err := scaffoldInto(dir, kind, id)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "created %s\nnext: %s\n", dir, strings.Join(append(next, "fre test "+dir, "fre deploy "+dir), " && "))
			return nil
		},
	}
}

// scaffoldInto makes the template and returns the commands to run before a build.
func scaffoldInto(dir, kind, id string) (next []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, from := range []string{scaffoldCommon, kind} {
		from = path.Join("scaffold", from)
		err := fs.WalkDir(scaffold, from, func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			content, err := scaffold.ReadFile(p)
			if err != nil {
				return err
			}
			name := strings.TrimSuffix(strings.TrimPrefix(p, from+"/"), ".txt")
			switch name {
			case scaffoldNext:
				next = append(next, strings.ReplaceAll(strings.TrimSpace(string(content)), "DIR", dir))
				return nil
			case "fret.yaml", "README.md":
				content = bytes.ReplaceAll(content, []byte("NAME"), []byte(id))
			}
			mode := fs.FileMode(0o644)
			if strings.HasSuffix(name, ".sh") {
				mode = 0o755
			}
			if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
				return err
			}
			return root.WriteFile(name, content, mode)
		})
		if err != nil {
			return nil, err
		}
	}
	return next, nil
}
