package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Sourced is a Runtime whose handlers are files that an interpreter reads.
type Sourced interface {
	Runtime

	// Source returns the handler's file in the code (a path below /function), and the name of the
	// interpreter that reads the file. file is "" if the handler is not source, or is unknown. read
	// returns nil for a missing file.
	Source(t *template.Template, read func(file string) []byte) (file, interpreter string)
}

// Parser is a Runtime whose interpreter can parse a file without running it.
type Parser interface {
	Runtime

	// Parse returns the interpreter's arguments to parse the file in the next argument. The
	// interpreter prints its reason and ends with a status other than 0 if it cannot parse the
	// file. nil: the interpreter or the file is of another language.
	Parse(interpreter, file string) []string
}

// codeArguments are options by which interpreters take code, or a module's name,
// instead of a file.
var codeArguments = []string{"-c", "-e", "-m", "-p", "-r", "--eval", "--print"}

// SourceOf returns the file of the code that a command line runs, and its interpreter's name: for
// "lua serve.lua" serve.lua and lua, for "bin/run" the interpreter in the first line of bin/run.
// No file: the command runs no source of the code.
func SourceOf(words []string, read func(file string) []byte) (file, interpreter string) {
	for i, word := range words {
		if slices.Contains(codeArguments, word) {
			return "", ""
		}
		file = strings.TrimPrefix(path.Clean(word), "/"+codePrefix+"/")
		text := read(file)
		switch {
		case text == nil:
			continue
		case bytes.IndexByte(text, 0) >= 0: // a program, or an archive of modules
			return "", ""
		case i > 0:
			return file, path.Base(words[0])
		}
		return file, interpreterOf(text)
	}
	return "", ""
}

// interpreterOf returns the name of the interpreter in a script's first line, "" without one.
func interpreterOf(script []byte) string {
	line, _, _ := strings.Cut(string(script), "\n")
	if !strings.HasPrefix(line, "#!") {
		return ""
	}
	programs, err := scriptInterpreters(line)
	if err != nil {
		return ""
	}
	return path.Base(programs[0])
}

// maxParsed is the largest source that is read into memory and parsed.
const maxParsed = 4 << 20

// checkSyntax refuses a handler's file that its interpreter cannot parse. Other files
// are not parsed: they may be templates, or for another version of the language.
// Errors: *[template.FieldError] with what the interpreter prints.
func (b *Builder) checkSyntax(ctx context.Context, of *buildOf, runtime Runtime, code store.Digest) error {
	sourced, ok := runtime.(Sourced)
	if !ok {
		return nil
	}
	tree, err := b.Store.Tree(code)
	if err != nil {
		return err
	}
	read := func(file string) []byte {
		text, readErr := b.readFile(tree, file)
		err = errors.Join(err, readErr)
		return text
	}
	file, interpreter := sourced.Source(of.t, read)
	if file == "" || err != nil {
		return err
	}
	args, language := b.parser(interpreter, file)
	if args == nil {
		return nil
	}
	program, err := lookPath(b.Store.Rootfs(of.base.Digest), interpreter, searchPath(of.env))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the interpreter comes with packages
	}
	if err != nil {
		return err
	}
	text := read(file)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("parsed:%x", sha256.Sum256(slices.Concat([]byte(strings.Join(append(args, string(of.base.Digest), file, ""), "\x00")), text)))
	if _, ok := b.Store.Part(key); ok {
		return nil
	}
	err = b.step(of, func(s *Step) error {
		dir := filepath.Join(s.Scratch, "code")
		source := filepath.Join(dir, filepath.FromSlash(file))
		if err := errors.Join(os.MkdirAll(filepath.Dir(source), 0o755), os.WriteFile(source, text, 0o644)); err != nil {
			return err
		}
		return s.Run.Run(ctx, Command{
			Rootfs: s.Rootfs, Args: slices.Concat([]string{program}, args, []string{"/work/" + file}), Dir: "/work",
			Env:   under(of.env, []string{systemPath, "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"}),
			Binds: []Bind{{Source: dir, Target: "/work"}},
		})
	})
	if exit, ok := errors.AsType[*ExitError](err); ok && !exit.signalled() {
		says := strings.ReplaceAll(strings.TrimSpace(exit.Output), "/work/", "")
		return &template.FieldError{Field: "handler", Message: fmt.Sprintf("%s cannot parse the handler's file %s; correct the file and build again:\n%s", language, file, says)}
	}
	if err != nil {
		return err
	}
	return b.Store.PutPart(ctx, key, store.Part{Kind: "code", Name: of.t.ID, Version: of.t.Version, Prefix: codePrefix, Tree: code})
}

// parser returns the arguments by which an interpreter parses a file, and the name of its language;
// nil if FRE knows none.
func (b *Builder) parser(interpreter, file string) (args []string, language string) {
	for _, r := range b.Runtimes {
		if p, ok := r.(Parser); ok {
			if args := p.Parse(interpreter, file); args != nil {
				return args, r.Name()
			}
		}
	}
	return nil, ""
}

// readFile returns the content of a file of the tree; nil for a missing file, or a file too long
// for a source.
func (b *Builder) readFile(tree *store.Tree, file string) ([]byte, error) {
	for i := range tree.Entries {
		e := &tree.Entries[i]
		if e.Path != file || e.Kind != store.KindFile || e.Size > maxParsed {
			continue
		}
		r, err := b.Store.OpenFile(e)
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }()
		text, err := io.ReadAll(r)
		if text == nil {
			text = []byte{}
		}
		return text, err
	}
	return nil, nil
}
