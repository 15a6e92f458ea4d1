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

func (c *cli) newCommand() *cobra.Command {
	kinds := scaffoldKinds()
	return &cobra.Command{
		Use:   "new LANGUAGE DIR",
		Short: "Make a template to start from",
		Long: fmt.Sprintf(`Make a template to start from in DIR, which must not exist or be empty: code, a
test with its event and the answer expected, fret.yaml. Its id is DIR's last part.
LANGUAGE is one of %s.
native is a Go program, to be compiled before it is deployed; what the others need
is printed.`, strings.Join(kinds, ", ")),
		Args: args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return kinds, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, dir := args[0], args[1]
			if !slices.Contains(kinds, kind) {
				return usageError{fmt.Errorf("%q is not one of %s", kind, strings.Join(kinds, ", "))}
			}
			absolute, err := filepath.Abs(dir)
			if err != nil {
				return err
			}
			id := filepath.Base(absolute)
			if !templateID.MatchString(id) {
				return usageError{fmt.Errorf("%q cannot be a function's name: lower-case letters, digits and dashes", id)}
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
			fmt.Fprintf(cmd.OutOrStdout(), "made %s\nnext: %s\n", dir, strings.Join(append(next, "fre test "+dir, "fre deploy "+dir), " && "))
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
