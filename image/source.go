package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Limits of unpacked code from an archive, as for an upload.
const (
	maxCodeBytes   = 512 << 20
	maxCodeEntries = 100_000
)

// withSource calls f with the directory that contains code.path: the template's directory, or a
// copy of an archive or of a repository's commit, which exists during the call.
func (b *Builder) withSource(ctx context.Context, of *buildOf, f func(*os.Root) error) error {
	code := &of.t.Code
	switch {
	case code.Archive != "":
		return b.step(of, func(s *Step) error {
			top := filepath.Join(s.Scratch, "archive")
			if err := os.Mkdir(top, 0o755); err != nil {
				return err
			}
			return openedIn(s, top, func(root *os.Root) error {
				if err := unpackCode(ctx, of.dir, code.Archive, root); err != nil {
					return err
				}
				return f(root)
			})
		})
	case code.Git != nil:
		return b.step(of, func(s *Step) error {
			top := filepath.Join(s.Scratch, "commit")
			if err := b.checkout(ctx, s, of, top); err != nil {
				return err
			}
			return openedIn(s, top, f)
		})
	}
	return f(of.dir)
}

// openedIn calls f with dir, a directory below s.Scratch. Programs of a step are not trusted: a
// symbolic link that they left cannot lead out of Scratch.
func openedIn(s *Step, dir string, f func(*os.Root) error) error {
	name, err := filepath.Rel(s.Scratch, dir)
	if err != nil {
		return err
	}
	scratch, err := os.OpenRoot(s.Scratch)
	if err != nil {
		return err
	}
	defer func() { _ = scratch.Close() }()
	root, err := scratch.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return f(root)
}

func unpackCode(ctx context.Context, dir *os.Root, name string, to *os.Root) error {
	fail := func(format string, args ...any) error {
		return &template.FieldError{Field: "code.archive", Message: fmt.Sprintf("code.archive %q: %s", name, fmt.Sprintf(format, args...))}
	}
	f, err := openRegular(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("no such file in the template's directory")
	case err != nil && !ofHost(err):
		return fail("%s", whyUnread(err))
	case err != nil:
		return fmt.Errorf("code: %w", err)
	}
	defer func() { _ = f.Close() }()
	err = unpack.File(ctx, to, f, unpack.Limits{Bytes: maxCodeBytes, Entries: maxCodeEntries})
	if errors.Is(err, unpack.ErrArchive) || errors.Is(err, unpack.ErrLimit) {
		return fail("%s", err)
	}
	return err
}

// checkout writes the commit for the template to the new directory top: the locked commit if the
// lock answers the request. The store keeps commits for templates with the same URL and credential.
func (b *Builder) checkout(ctx context.Context, s *Step, of *buildOf, top string) error {
	git := of.t.Code.Git
	if b.Git == nil {
		return &template.FieldError{Field: "code.git", Message: "the engine does not fetch code from git"}
	}
	key := func(commit string) string {
		return fmt.Sprintf("git:%s:%x", commit, sha256.Sum256(fmt.Appendf(nil, "%q %q %v", git.URL, git.Auth, git.Submodules)))
	}
	commit := ""
	if of.lock.Git != nil {
		commit = of.lock.Git.Commit
		if part, ok := b.Store.Part(key(commit)); ok {
			return writeTree(ctx, b.Store, part.Tree, top)
		}
	}
	if err := Offline(ctx, "the code of "+git.URL); err != nil {
		return err
	}
	of.report(Progress{Step: "code", Name: git.URL, Message: "fetch"})
	dir, id, err := b.Git.Fetch(ctx, s, git, commit)
	if err != nil {
		return err
	}
	if !commitPattern.MatchString(id) || commit != "" && id != commit {
		return fmt.Errorf("code.git: asked for the commit %q and got %q", commit, id)
	}
	of.lock.Git = &LockedGit{Request: git.Key(), Commit: id}
	w, err := b.Store.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	err = openedIn(s, dir, func(root *os.Root) error {
		var size codeSize
		if err := size.addAll(ctx, "code.git", root); err != nil {
			return err
		}
		return w.AddDir(root, "")
	})
	if err != nil {
		return err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return err
	}
	if err := b.Store.PutPart(ctx, key(id), store.Part{Kind: "code", Name: "git", Version: id, Tree: tree}); err != nil {
		return err
	}
	return writeTree(ctx, b.Store, tree, top)
}

// writeTree writes a tree of files, directories and symbolic links to the new directory to.
func writeTree(ctx context.Context, s *store.Store, d store.Digest, to string) error {
	tree, err := s.Tree(d)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	w := &sourceWriter{root: root, sum: sha256.New()}
	for i := range tree.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := writeEntry(s, w, &tree.Entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func writeEntry(s *store.Store, w *sourceWriter, e *store.Entry) error {
	switch mtime := time.Unix(e.MTime, 0); e.Kind {
	case store.KindDir:
		return w.Directory(e.Path, fs.FileMode(e.Mode), mtime)
	case store.KindSymlink:
		return w.Symlink(e.Path, e.Link, mtime)
	case store.KindFile:
		f, err := s.OpenFile(e)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		return w.File(e.Path, fs.FileMode(e.Mode), mtime, f)
	case store.KindWhiteout:
	}
	return fmt.Errorf("%s is a %s, not allowed in code", e.Path, e.Kind)
}

// projectRequests adds to the template the requests for packages that the code makes. If the build
// must not resolve, and the commit is not locked, it does not fetch code to find requests.
func (b *Builder) projectRequests(ctx context.Context, of *buildOf, runtime Runtime) error {
	p, ok := runtime.(Project)
	if !ok || of.t.Code.Build != nil || OptionsOf(ctx).AsIs || OptionsOf(ctx).Locked && of.t.Code.Git != nil && of.lock.Git == nil {
		return nil
	}
	return b.withSource(ctx, of, func(top *os.Root) error {
		if info, err := top.Stat(of.t.Code.Path); err != nil || !info.IsDir() {
			return nil // the later step reports the fault
		}
		code, err := top.OpenRoot(of.t.Code.Path)
		if err != nil {
			return err
		}
		defer func() { _ = code.Close() }()
		site, file, text, err := p.Requests(code.FS())
		r := of.t.Packages.Of(site)
		switch {
		case !r.None():
			return nil // the template's requests win; the build of the code reports faults
		case err == nil && site != "":
			r.File, r.Text = path.Join(of.t.Code.Path, file), bom.Decode(text)
			of.t.Request(site, r)
		}
		return err
	})
}

// built has the runtime build the function's code, or finds an earlier result. The part's Tree is
// empty if the code needs no build.
func (b *Builder) built(ctx context.Context, of *buildOf, code *os.Root, builder CodeBuilder) (part store.Part, err error) {
	err = b.step(of, func(s *Step) error {
		source := filepath.Join(s.Scratch, "source")
		files, digest, err := copySource(ctx, code, of.t.Code.Path, source)
		if err != nil {
			return err
		}
		toolchain, ok := builder.Builds(of.t, files)
		if !ok {
			return nil
		}
		key, err := builtKey(of, builder.Name(), toolchain, digest)
		if err != nil {
			return err
		}
		if part, ok = b.Store.Part(key); ok {
			return nil
		}
		unlock, err := b.lock(ctx, key)
		if err != nil {
			return err
		}
		defer unlock()
		if part, ok = b.Store.Part(key); ok {
			return nil // built during the wait
		}
		dir, err := builder.BuildCode(ctx, s, of.t, of.lock, source)
		if err != nil {
			return err
		}
		part = store.Part{Kind: "code", Name: of.t.ID, Version: digest[:12], Prefix: codePrefix}
		err = openedIn(s, dir, func(root *os.Root) (err error) {
			part.Tree, err = b.storeCode(ctx, of, root, ".")
			return err
		})
		if err != nil {
			return err
		}
		return b.Store.PutPart(ctx, key, part)
	})
	return part, err
}

// builtKey returns the key of a build's result in the store.
func builtKey(of *buildOf, runtime, toolchain, source string) (string, error) {
	text, err := json.Marshal([]any{runtime, toolchain, source, of.base.Digest, of.t.Handler, of.lock})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return "built:" + runtime + ":" + hex.EncodeToString(sum[:]), nil
}

// copySource copies the code at name below dir, without ignored files, to the new directory to. It
// returns the sorted paths of the files, and a digest of paths, modes and contents.
func copySource(ctx context.Context, dir *os.Root, name, to string) (files []string, digest string, err error) {
	if err := errors.Join(os.Mkdir(to, 0o755), os.Chmod(to, 0o777)); err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = root.Close() }()
	w := &sourceWriter{root: root, sum: sha256.New()}
	c := codeTree{ctx: ctx, w: w, report: func(Progress) {}, entries: map[string]codeEntry{}}
	if err := c.add(dir, name, func() error { return nil }); err != nil {
		return nil, "", err
	}
	for _, p := range slices.Sorted(maps.Keys(c.entries)) {
		if !c.entries[p].mode.IsDir() {
			files = append(files, p)
		}
	}
	return files, hex.EncodeToString(w.sum.Sum(nil)), nil
}

// storeCode makes a tree of the code at name below dir.
func (b *Builder) storeCode(ctx context.Context, of *buildOf, dir *os.Root, name string) (store.Digest, error) {
	w, err := b.Store.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	c := codeTree{ctx: ctx, w: w, id: of.t.ID, report: of.report, entries: map[string]codeEntry{}}
	err = c.add(dir, name, func() error { return b.checkHandler(of.t, &c, b.Store.Rootfs(of.base.Digest)) })
	if err != nil {
		return "", err
	}
	return w.Commit(ctx)
}
