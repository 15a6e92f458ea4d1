package java

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// jarPart is a jar, locked and in the store.
type jarPart struct {
	image.LockedPackage
	part store.Part
}

func locked(jars []jarPart) []image.LockedPackage {
	var out []image.LockedPackage
	for _, j := range jars {
		out = append(out, j.LockedPackage)
	}
	return out
}

func inStore(jars []jarPart) []store.Part {
	var out []store.Part
	for _, j := range jars {
		out = append(out, j.part)
	}
	return out
}

// key names a jar's part in the store.
func key(p image.LockedPackage) string {
	return "maven:" + p.Name + ":" + p.Version + ":" + p.Hashes[0]
}

// coordinates splits a locked name: "group:artifact", "group:artifact:classifier".
func coordinates(p image.LockedPackage) (group, artifact, classifier string) {
	words := strings.SplitN(p.Name, ":", 3)
	if len(words) == 3 {
		classifier = words[2]
	}
	return words[0], words[1], classifier
}

// jarFile is a jar in a local repository.
type jarFile struct{ name, version, path string }

var plainPath = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*){3,}$`)

// parseClassPath reads a class path of files in the local repository:
//
//	REPOSITORY/org/example/artifact/1.0/artifact-1.0-classifier.jar:…
func parseClassPath(list, repository string) ([]jarFile, error) {
	var out []jarFile
	for p := range strings.SplitSeq(strings.TrimSpace(list), ":") {
		if p == "" {
			continue
		}
		rel, ok := strings.CutPrefix(p, repository+"/")
		if !ok || !plainPath.MatchString(rel) {
			return nil, fmt.Errorf("maven: unexpected file %q on the class path", p)
		}
		jar, err := parseJarPath(rel)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, jar) {
			out = append(out, jar)
		}
	}
	return out, nil
}

// parseJarPath reads the path of a jar in the local repository.
func parseJarPath(rel string) (jarFile, error) {
	words := strings.Split(rel, "/")
	n := len(words)
	version, artifact, group := words[n-2], words[n-3], strings.Join(words[:n-3], ".")
	stem, isJar := strings.CutSuffix(words[n-1], ".jar")
	classifier, ok := strings.CutPrefix(stem, artifact+"-"+version)
	if !isJar || !ok || classifier != "" && (classifier[0] != '-' || len(classifier) == 1) {
		return jarFile{}, fmt.Errorf("maven: %s:%s:%s is %q, not a jar of a released version: use a released version", group, artifact, version, words[n-1])
	}
	name := group + ":" + artifact
	if classifier != "" {
		name += ":" + classifier[1:]
	}
	return jarFile{name, version, rel}, nil
}

const maxJar = 1 << 30

// copyJar copies a file of at most maxJar bytes to a directory and returns its hash.
func copyJar(from *os.Root, name string, to *os.Root) (hash string, err error) {
	src, err := from.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = src.Close() }()
	dst, err := to.OpenFile(path.Base(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(dst, sum), io.LimitReader(src, maxJar+1))
	if err == nil && n > maxJar {
		err = fmt.Errorf("more than %d bytes", maxJar)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), errors.Join(err, dst.Close())
}

// copyJars copies the lock's jars, the compiler's included, to dir, and returns their sorted names.
func copyJars(s *image.Step, lock *image.Lock, dir string) ([]string, error) {
	if lock == nil {
		return nil, nil
	}
	section, ok := lock.Sites[Site{}.Name()].(*Locked)
	if !ok {
		return nil, nil
	}
	var names []string
	for _, p := range section.jars() {
		part, ok := s.Store.Part(key(p))
		if !ok {
			return nil, fmt.Errorf("the store has no part of %s %s", p.Name, p.Version)
		}
		tree, err := s.Store.Tree(part.Tree)
		if err != nil {
			return nil, err
		}
		for i := range tree.Entries {
			e := &tree.Entries[i]
			src, err := s.Store.OpenFile(e)
			if err != nil {
				return nil, err
			}
			name := path.Base(e.Path)
			names = append(names, name)
			dst, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
			if err != nil {
				return nil, errors.Join(err, src.Close())
			}
			_, err = io.Copy(dst, src)
			if err := errors.Join(err, src.Close(), dst.Close()); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
