package main

import (
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

//go:embed scaffold
var scaffold embed.FS

var scaffoldKinds = []string{"python", "node", "native", "native-shell"}

var templateID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func (c *cli) newCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "new python|node|native|native-shell DIR",
		Short: "Make a template to start from",
		Long: `Make a template to start from in DIR, which must not exist or be empty. Its id
is DIR's last part. native is a Go program, to be compiled before it is deployed;
the others can be deployed as they are.`,
		Args: args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return scaffoldKinds, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, dir := args[0], args[1]
			if !slices.Contains(scaffoldKinds, kind) {
				return usageError{fmt.Errorf("%q is not one of %s", kind, strings.Join(scaffoldKinds, ", "))}
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
			if err := scaffoldInto(dir, kind, id); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "made %s\n", dir)
			if kind == "native" {
				fmt.Fprintf(out, "next: (cd %s && CGO_ENABLED=0 go build -o bin/handle main.go) && fre deploy %s\n", dir, dir)
			} else {
				fmt.Fprintf(out, "next: fre deploy %s\n", dir)
			}
			return nil
		},
	}
}

func scaffoldInto(dir, kind, id string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := scaffold.ReadDir(path.Join("scaffold", kind))
	if err != nil {
		return err
	}
	for _, f := range files {
		content, err := scaffold.ReadFile(path.Join("scaffold", kind, f.Name()))
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(f.Name(), ".sh") {
			mode = 0o755
		}
		if f.Name() == "fret.yaml" {
			content = []byte(strings.Replace(string(content), "id: NAME", "id: "+id, 1))
		}
		// .txt hides Go sources from the compiler of this repository.
		name := filepath.Join(dir, strings.TrimSuffix(f.Name(), ".txt"))
		if err := os.WriteFile(name, content, mode); err != nil {
			return err
		}
	}
	return nil
}
