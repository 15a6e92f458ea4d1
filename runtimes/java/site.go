package java

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Site is the source of packages.maven: the repositories of the host's own configuration, by way of
// Debian's Maven. It implements image.Site.
type Site struct {
	JDK   []string // Debian packages to add to the base "java" for a JDK
	Tools []string // and for Maven
}

// Name is "maven".
func (Site) Name() string { return "maven" }

// Bases is FRE's base with a JVM.
func (Site) Bases() []string { return []string{"java"} }

// Env is empty: the bootstrap knows the directory of the jars.
func (Site) Env() []string { return nil }

// Packages makes one part for each jar, at opt/java. It fetches no jar if the lock answers the
// request and the store has its parts.
func (r Site) Packages(ctx context.Context, s *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	site := &site{Site: r, step: s}
	section, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		section, parts, err := site.resolve(ctx, t.Packages.Of("maven"))
		if err == nil {
			lock.Sites[r.Name()] = section
		}
		return parts, err
	}
	all := section.jars()
	parts := make([]store.Part, len(all))
	missing := false
	for i, p := range all {
		part, ok := s.Store.Part(key(p))
		part.Hash = p.Hashes[0]
		parts[i], missing = part, missing || !ok
	}
	if missing {
		return site.install(ctx, section)
	}
	return parts[:len(section.Packages)], nil
}

// resolve returns the lock's section for the requests, and the parts of its jars.
func (s *site) resolve(ctx context.Context, r *template.Requests) (*Locked, []store.Part, error) {
	of := resolution{pom: project(r.List, false), shared: true}
	if r.File != "" {
		p, err := parsePom(r.Text)
		if err != nil {
			return nil, nil, err
		}
		of.provided = p.provides()
		if of.pom, of.shared = p.plain(); !of.shared {
			of.pom = r.Text // the file may name extensions, which are programs
		}
		if of.shared && len(p.Dependencies) == 0 && !of.provided {
			return &Locked{LockedPackages: image.LockedPackages{Request: r.Key(), Packages: []image.LockedPackage{}}}, nil, nil
		}
	}
	s.step.Report(image.Progress{Step: "packages", Message: "resolve"})
	jars, provided, err := s.fetch(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	return &Locked{image.LockedPackages{Request: r.Key(), Packages: locked(jars)}, locked(provided)}, inStore(jars), nil
}

// install fetches the locked jars, and returns the parts of the jars for the run time.
func (s *site) install(ctx context.Context, section *Locked) ([]store.Part, error) {
	all := section.jars()
	requests := make([]string, len(all))
	for i, p := range all {
		group, artifact, classifier := coordinates(p)
		requests[i] = group + ":" + artifact + ":" + p.Version
		if classifier != "" {
			requests[i] += ":" + classifier
		}
	}
	s.step.Report(image.Progress{Step: "packages", Message: "install", Total: int64(len(all))})
	jars, _, err := s.fetch(ctx, resolution{pom: project(requests, true), shared: true, locked: all})
	if err != nil {
		return nil, err
	}
	if len(jars) != len(all) {
		return nil, fmt.Errorf("%s names %d jars, the repositories gave %d: delete the file to resolve again", image.LockFile, len(all), len(jars))
	}
	jars = slices.DeleteFunc(jars, func(j jarPart) bool {
		return slices.ContainsFunc(section.Provided, func(p image.LockedPackage) bool { return key(p) == key(j.LockedPackage) })
	})
	return inStore(jars), nil
}

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

// pom is a project that FRE writes for Maven (maven.apache.org/pom.html).
type pom struct {
	XMLName      xml.Name     `xml:"http://maven.apache.org/POM/4.0.0 project"`
	ModelVersion string       `xml:"modelVersion"`
	Group        string       `xml:"groupId"`
	Artifact     string       `xml:"artifactId"`
	Version      string       `xml:"version"`
	Packaging    string       `xml:"packaging"`
	Properties   properties   `xml:"properties"`
	Managed      []dependency `xml:"dependencyManagement>dependencies>dependency"`
	Dependencies []dependency `xml:"dependencies>dependency"`
}

type properties struct {
	List []property `xml:",any"`
}

type property struct {
	XMLName xml.Name
	Value   string `xml:",chardata"`
}

type dependency struct {
	Group      string      `xml:"groupId"`
	Artifact   string      `xml:"artifactId"`
	Version    string      `xml:"version,omitempty"`
	Classifier string      `xml:"classifier,omitempty"`
	Type       string      `xml:"type,omitempty"`
	Scope      string      `xml:"scope,omitempty"`
	Exclusions []exclusion `xml:"exclusions>exclusion"`
}

type exclusion struct {
	Group    string `xml:"groupId"`
	Artifact string `xml:"artifactId"`
}

// project returns a pom that depends on requests, "group:artifact:version" or
// "group:artifact:version:classifier". With alone it excludes the requests' own dependencies. A
// request that ends with @bom fixes versions of further artifacts.
func project(requests []string, alone bool) []byte {
	p := pom{ModelVersion: "4.0.0", Group: "fre", Artifact: "function", Version: "0", Packaging: "pom"}
	for _, r := range requests {
		r, bom := strings.CutSuffix(r, "@bom")
		words := append(strings.Split(r, ":"), "", "")
		d := dependency{Group: words[0], Artifact: words[1], Version: words[2], Classifier: words[3]}
		switch {
		case bom:
			d.Type, d.Scope = "pom", "import"
			p.Managed = append(p.Managed, d)
			continue
		case alone:
			d.Exclusions = []exclusion{{"*", "*"}}
		}
		p.Dependencies = append(p.Dependencies, d)
	}
	out, err := xml.MarshalIndent(p, "", "  ")
	if err != nil {
		panic(err) // strings only
	}
	return out
}

// site is the repositories seen from one build.
type site struct {
	Site
	step *image.Step
}

// dependencyPlugin is the version of the resolving plugin.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

// resolution is a task for Maven.
type resolution struct {
	pom      []byte
	shared   bool                  // use the local repository that builds share: no program of the project runs
	provided bool                  // include the compiler's dependencies
	locked   []image.LockedPackage // unless nil, the jars must be exactly these
}

// fetch has Maven resolve a project. It makes a part of each jar for the run time (jars) and of
// each further jar for the compiler (provided).
func (s *site) fetch(ctx context.Context, of resolution) (jars, provided []jarPart, err error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(b.Write(pomFile, of.pom), b.Mkdir("out")); err != nil {
		return nil, nil, err
	}
	found, err := s.classPath(ctx, b, of.shared, "runtime")
	if err != nil {
		return nil, nil, err
	}
	needed := len(found)
	if of.provided {
		more, err := s.classPath(ctx, b, of.shared, "compile")
		if err != nil {
			return nil, nil, err
		}
		found = append(found, slices.DeleteFunc(more, func(j jarFile) bool { return slices.Contains(found, j) })...)
	}
	from, err := s.repository(b, of.shared)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = from.Close() }()
	for n, j := range found {
		part, p, err := s.part(ctx, b, from, j, n, of.locked)
		if err != nil {
			return nil, nil, err
		}
		jars = append(jars, jarPart{p, part})
		s.step.Report(image.Progress{Step: "packages", Name: j.name + " " + j.version, Done: int64(n + 1), Total: int64(len(found))})
	}
	return jars[:needed], jars[needed:], nil
}

// classPath has Maven resolve the bench's project for a scope, "runtime" or "compile".
func (s *site) classPath(ctx context.Context, b *install.Bench, shared bool, scope string) ([]jarFile, error) {
	repository, cache := "/work/repository", ""
	if shared {
		repository, cache = "/run", "maven"
	}
	words, err := s.maven(ctx, b, repository, cache, "-Dmdep.outputFile=/work/out/"+scope, "-DincludeScope="+scope, dependencyPlugin+":build-classpath")
	if err != nil {
		return nil, failed(err, words)
	}
	list, err := b.Read("out/" + scope)
	if err != nil {
		return nil, fmt.Errorf("maven: %w", err)
	}
	return parseClassPath(string(list), repository)
}

// repository opens Maven's local repository. A private repository may hold links that a program of
// the project made: they do not lead out of the bench.
func (s *site) repository(b *install.Bench, shared bool) (*os.Root, error) {
	if !shared {
		return b.Open("repository")
	}
	dir, err := install.Cache(s.step.Store, "maven")
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// part makes the part of the nth jar in the local repository from.
func (s *site) part(ctx context.Context, b *install.Bench, from *os.Root, j jarFile, n int, locked []image.LockedPackage) (store.Part, image.LockedPackage, error) {
	fail := func(err error) (store.Part, image.LockedPackage, error) {
		var known *image.PackageError
		if !errors.As(err, &known) { // a PackageError names the package itself
			err = fmt.Errorf("%s %s: %w", j.name, j.version, err)
		}
		return store.Part{}, image.LockedPackage{}, err
	}
	out := fmt.Sprintf("jars/%d", n)
	if err := b.Mkdir(out); err != nil {
		return fail(err)
	}
	dir, err := b.Open(out)
	if err != nil {
		return fail(err)
	}
	hash, err := copyJar(from, j.path, dir)
	if err := errors.Join(err, dir.Close()); err != nil {
		return fail(err)
	}
	p := image.LockedPackage{Name: j.name, Version: j.version, Hashes: []string{hash}}
	if locked != nil {
		i := slices.IndexFunc(locked, func(l image.LockedPackage) bool { return l.Name == p.Name && l.Version == p.Version })
		if i < 0 || locked[i].Hashes[0] != hash {
			return fail(&image.PackageError{Site: "maven", Package: p.Name + " " + p.Version, Cause: image.PackageChanged, Message: "hash mismatch: the repository's has " + hash})
		}
	}
	if part, ok := s.step.Store.Part(key(p)); ok {
		part.Hash = hash
		return part, p, nil
	}
	part, err := b.Put(ctx, key(p), store.Part{Kind: "maven", Name: p.Name, Version: p.Version, Prefix: jars, Hash: hash}, out, func(string) bool { return false })
	if err != nil {
		return fail(err)
	}
	return part, p, nil
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

// maven runs Maven at the bench, without Maven's shell script, with a local repository and, if
// cache is not "", the cache at /run.
func (s *site) maven(ctx context.Context, b *install.Bench, repository, cache string, args ...string) (words string, err error) {
	rootfs, err := s.step.Tools(ctx, "java", slices.Concat(s.JDK, s.Tools)...)
	if err != nil {
		return "", err
	}
	trusted, err := s.certificates(ctx, rootfs)
	if err != nil {
		return "", err
	}
	launch := []string{
		jdkHome + "/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		"-Djavax.net.ssl.trustStore=/function/cacerts", "-Djavax.net.ssl.trustStoreType=JKS", "-Duser.home=/work",
		"-Dmaven.home=/usr/share/maven", "-Dmaven.multiModuleProjectDirectory=/work", "-Dclassworlds.conf=/usr/share/maven/bin/m2.conf",
		"-cp", "/usr/share/maven/boot/plexus-classworlds-2.x.jar",
	}
	launch = append(launch, proxies(s.step.Settings.Env)...)
	launch = append(launch, "org.codehaus.plexus.classworlds.launcher.Launcher",
		"-B", "-q", "-C", "-U", "-Dstyle.color=never", "-Dmaven.artifact.threads=8", "-Dmaven.repo.local="+repository)
	for flag, file := range map[string]string{"-s": s.step.Settings.MavenSettings, "-gs": s.step.Settings.MavenGlobal} {
		if file == "" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("maven's configuration: %w", err)
		}
		// The copy, which may hold credentials, goes with the scratch directory.
		name := "settings" + flag + ".xml"
		if err := b.Write(name, hostOnly.ReplaceAll(text, nil)); err != nil {
			return "", err
		}
		launch = append(launch, flag, "/work/"+name)
	}
	return b.Run(ctx, install.Tool{Rootfs: rootfs, Network: true, Cache: cache, Program: trusted, Args: append(launch, args...)})
}

// hostOnly matches the setting that names a directory of the host.
var hostOnly = regexp.MustCompile(`(?s)<localRepository>.*?</localRepository>`)

// proxies converts the proxy variables of the environment to a JVM's properties: Maven reads no
// environment.
func proxies(env []string) []string {
	var out []string
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "http_proxy", "https_proxy":
			u, err := url.Parse(value)
			if err != nil || u.Hostname() == "" {
				continue
			}
			scheme := strings.TrimSuffix(name, "_proxy")
			out = append(out, "-D"+scheme+".proxyHost="+u.Hostname(), "-D"+scheme+".proxyPort="+cmp.Or(u.Port(), "80"))
		case "no_proxy":
			var hosts []string
			for _, h := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
				if h[0] == '.' {
					h = "*" + h
				}
				hosts = append(hosts, h)
			}
			out = append(out, "-Dhttp.nonProxyHosts="+strings.Join(hosts, "|"))
		}
	}
	return out
}

// certificates returns a directory of FRE's own with the host's trusted certificates in a JVM's
// format, cacerts. It is made once for each state of the host's bundle.
func (s *site) certificates(ctx context.Context, jdk string) (dir string, err error) {
	bundle := s.step.Settings.CACerts
	if bundle == "" {
		bundle = filepath.Join(jdk, "etc/ssl/certs/ca-certificates.crt")
	}
	text, err := os.ReadFile(bundle)
	if err != nil {
		return "", fmt.Errorf("trusted certificates: %w", err)
	}
	programs, err := install.Cache(s.step.Store, "programs")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(programs, fmt.Sprintf("cacerts-%x", sha256.Sum256(text)))
	if _, err := os.Stat(filepath.Join(dir, "cacerts")); err == nil {
		return dir, nil
	}
	made, err := s.makeCertificates(ctx, jdk, text)
	if err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(programs, ".cacerts-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(aside) }()
	if err := os.WriteFile(filepath.Join(aside, "cacerts"), made, 0o644); err != nil {
		return "", err
	}
	return dir, install.Publish(aside, dir)
}

// makeCertificates converts a bundle of certificates to a JVM's format.
func (s *site) makeCertificates(ctx context.Context, jdk string, bundle []byte) ([]byte, error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Write("bundle", bundle), b.Mkdir("out")); err != nil {
		return nil, err
	}
	if err := certificates(ctx, b, jdk, "/work/bundle", "/work/out/cacerts"); err != nil {
		return nil, err
	}
	return b.Read("out/cacerts")
}

// noAnswer matches Maven's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`Could not find artifact|was not found in|Non-resolvable import POM|Non-resolvable parent POM|is missing|No versions available|Non-parseable POM|Malformed POM|Unrecognised tag|Could not resolve version conflict|must be a valid version`)

// failed makes the user's error from Maven's output.
func failed(err error, words string) error {
	lines := install.Lines(words, func(l string) bool {
		return strings.HasPrefix(l, "[Help ") || strings.HasPrefix(l, "To see the full stack trace") || strings.HasPrefix(l, "Re-run Maven") ||
			strings.HasPrefix(l, "For more information") || strings.HasPrefix(l, "[WARNING]") || l == "->"
	}, "[ERROR] ", "[ERROR]", "[FATAL] ")
	return install.PackageFailed(err, "maven", strings.Join(lines, "\n"), noAnswer)
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
