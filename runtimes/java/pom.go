package java

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// pomFile at the top of code makes it a Maven project.
const pomFile = "pom.xml"

const maxPom = 1 << 20

// mavenSource is the default source directory.
const mavenSource = "src/main/java"

// projectPom holds the elements of a project's own pom that FRE reads (maven.apache.org/pom.html).
// It lacks inherited elements, which only Maven resolves.
type projectPom struct {
	XMLName xml.Name `xml:"project"`

	Parent       *struct{}    `xml:"parent"`
	Group        string       `xml:"groupId"`
	Artifact     string       `xml:"artifactId"`
	Version      string       `xml:"version"`
	Packaging    string       `xml:"packaging"`
	Modules      []string     `xml:"modules>module"`
	Repositories *struct{}    `xml:"repositories"`
	Plugins      *struct{}    `xml:"pluginRepositories"`
	Properties   properties   `xml:"properties"`
	Managed      []dependency `xml:"dependencyManagement>dependencies>dependency"`
	Dependencies []dependency `xml:"dependencies>dependency"`
	Build        pomBuild     `xml:"build"`
	Profiles     []struct {
		Active string   `xml:"activation>activeByDefault"`
		Build  pomBuild `xml:"build"`
	} `xml:"profiles>profile"`

	values map[string]string // of the properties
}

type pomBuild struct {
	Source    string        `xml:"sourceDirectory"`
	Resources []pomResource `xml:"resources>resource"`
	Plugins   []pomPlugin   `xml:"plugins>plugin"`
}

type pomResource struct {
	Directory string    `xml:"directory"`
	Target    string    `xml:"targetPath"`
	Filtering string    `xml:"filtering"`
	Includes  *struct{} `xml:"includes"`
	Excludes  *struct{} `xml:"excludes"`
}

type pomPlugin struct {
	Artifact   string           `xml:"artifactId"`
	Extensions string           `xml:"extensions"`
	Config     pomConfiguration `xml:"configuration"`
	Executions []struct {
		Phase  string           `xml:"phase"`
		Goals  []string         `xml:"goals>goal"`
		Config pomConfiguration `xml:"configuration"`
	} `xml:"executions>execution"`
}

// pomConfiguration holds the relevant configuration of the compiler plugin and the shade plugin.
type pomConfiguration struct {
	Release     string       `xml:"release"`
	Source      string       `xml:"source"`
	Target      string       `xml:"target"`
	Preview     string       `xml:"enablePreview"`
	Arguments   []string     `xml:"compilerArgs>arg"`
	Argument    string       `xml:"compilerArgument"`
	Processors  []dependency `xml:"annotationProcessorPaths>path"`
	Compiler    string       `xml:"compilerId"`
	Proc        string       `xml:"proc"`
	Relocations *struct{}    `xml:"relocations"`
}

// mavenProject describes the inputs of a project's build. Directories are clean, relative and below
// its top.
type mavenProject struct {
	source    string
	resources []string
	release   int    // of Java, 0 if unknown
	encoding  string // of the source
	processed bool   // annotation processors on the class path run
	parent    bool   // the project has a parent, which FRE does not see
}

// harmless matches plugins that do not change the classes and resources of a jar: they test, check,
// measure, sign, pack and publish.
var harmless = regexp.MustCompile(`^(maven-(assembly|checkstyle|clean|compiler|dependency|deploy|enforcer|failsafe|gpg|help|install|jar|javadoc|jxr|pmd|project-info-reports|release|shade|site|source|surefire|surefire-report|toolchains|wrapper)-plugin|` +
	`animal-sniffer-maven-plugin|central-publishing-maven-plugin|cyclonedx-maven-plugin|dependency-check-maven|flatten-maven-plugin|fmt-maven-plugin|formatter-maven-plugin|jacoco-maven-plugin|japicmp-maven-plugin|license-maven-plugin|nexus-staging-maven-plugin|sortpom-maven-plugin|spotbugs-maven-plugin|spotless-maven-plugin|spring-boot-maven-plugin|versions-maven-plugin)$`)

// harmlessArgument matches arguments of javac that only affect its messages or debug information.
var harmlessArgument = regexp.MustCompile(`^(-parameters|-g(:[a-z,]+)?|-Xlint(:[a-z,-]+)?|-Xdoclint.*|-Werror|-deprecation|-nowarn|-proc:none|-Xmaxwarns|-Xmaxerrs|[0-9]+)$`)

// notHere is the error for a feature of the project that FRE does not support.
func notHere(format string, args ...any) error {
	return &template.FieldError{Field: "code.path", Message: pomFile + ": " + fmt.Sprintf(format, args...) +
		": build the jar yourself (mvn package) and set code.path to the jar, or compile in code.build"}
}

func parsePom(text []byte) (*projectPom, error) {
	var p projectPom
	d := xml.NewDecoder(bytes.NewReader(text))
	d.CharsetReader = func(charset string, _ io.Reader) (io.Reader, error) {
		return nil, fmt.Errorf("encoded in %s: save the file as UTF-8", charset)
	}
	if err := d.Decode(&p); err != nil {
		return nil, &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s: %s", pomFile, err)}
	}
	p.values = map[string]string{}
	for _, v := range p.Properties.List {
		p.values[v.XMLName.Local] = strings.TrimSpace(v.Value)
	}
	return &p, nil
}

// maven returns the inputs of the project's build, or the reason why FRE cannot build the project.
func (p *projectPom) maven() (*mavenProject, error) {
	if packaging := strings.TrimSpace(p.expand(p.Packaging)); len(p.Modules) > 0 || packaging != "" && packaging != "jar" {
		return nil, notHere("the project is a %s of %d modules, but FRE builds a single jar", cmp.Or(packaging, "jar"), len(p.Modules))
	}
	m := &mavenProject{source: mavenSource, resources: []string{"src/main/resources"}, processed: true, parent: p.Parent != nil}
	m.encoding = p.expand(p.values["project.build.sourceEncoding"])
	if !plainWord.MatchString(m.encoding) {
		m.encoding = "UTF-8"
	}
	for _, name := range []string{"maven.compiler.release", "maven.compiler.target", "maven.compiler.source"} {
		m.release = max(m.release, javaRelease(p.expand(p.values[name])))
	}
	builds := []pomBuild{p.Build}
	for _, profile := range p.Profiles {
		if strings.TrimSpace(profile.Active) == "true" {
			builds = append(builds, profile.Build)
		}
	}
	for i := range builds {
		if err := p.build(m, &builds[i]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (p *projectPom) build(m *mavenProject, b *pomBuild) (err error) {
	if b.Source != "" {
		if m.source, err = p.directory("sourceDirectory", b.Source); err != nil {
			return err
		}
	}
	if len(b.Resources) > 0 {
		if m.resources, err = p.resourceDirectories(b.Resources); err != nil {
			return err
		}
	}
	for i := range b.Plugins {
		if err := p.plugin(m, &b.Plugins[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *projectPom) resourceDirectories(list []pomResource) (dirs []string, err error) {
	for _, r := range list {
		if p.expand(r.Filtering) == "true" || r.Target != "" || r.Includes != nil || r.Excludes != nil {
			return nil, notHere("FRE copies resources without filtering, targetPath, includes and excludes (%s)", r.Directory)
		}
		dir, err := p.directory("resource", r.Directory)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// plugin refuses a plugin that would change the result, and reads the compiler plugin's settings of
// the source.
func (p *projectPom) plugin(m *mavenProject, g *pomPlugin) error {
	name := strings.TrimSpace(g.Artifact)
	if strings.TrimSpace(g.Extensions) == "true" {
		return notHere("the plugin %s extends Maven, and FRE runs no plugins", name)
	}
	configs, err := g.configurations(name)
	if err != nil {
		return err
	}
	for _, c := range configs {
		switch {
		case name == "maven-shade-plugin" && c.Relocations != nil:
			return notHere("%s relocates classes, and FRE runs no plugins", name)
		case name == "maven-compiler-plugin":
			if err := p.compiler(m, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// configurations returns the plugin's configuration and the ones of its executions. An execution
// that may change the result is an error.
func (g *pomPlugin) configurations(name string) ([]*pomConfiguration, error) {
	configs := []*pomConfiguration{&g.Config}
	for i := range g.Executions {
		e := &g.Executions[i]
		if strings.TrimSpace(e.Phase) == "none" {
			continue
		}
		configs = append(configs, &e.Config)
		unpacks := slices.ContainsFunc(e.Goals, func(goal string) bool { return strings.HasPrefix(strings.TrimSpace(goal), "unpack") })
		if !harmless.MatchString(name) || unpacks {
			return nil, notHere("the plugin %s (%s) may change the result, and FRE runs no plugins", name, strings.Join(e.Goals, ", "))
		}
	}
	return configs, nil
}

func (p *projectPom) compiler(m *mavenProject, c *pomConfiguration) error {
	for _, v := range []string{c.Release, c.Target, c.Source} {
		m.release = max(m.release, javaRelease(p.expand(v)))
	}
	if len(c.Processors) > 0 {
		if _, ok := p.plain(); !ok {
			return notHere("annotationProcessorPaths of a project with a parent, profiles or repositories is not read (FRE takes processors among the dependencies, too, with the scope provided)")
		}
	}
	if id := strings.TrimSpace(c.Compiler); id != "" && id != "javac" {
		return notHere("FRE compiles by javac, not by %s", id)
	}
	arguments := append(strings.Fields(p.expand(c.Argument)), c.Arguments...)
	for _, a := range arguments {
		if a = strings.TrimSpace(p.expand(a)); !harmlessArgument.MatchString(a) {
			return notHere("FRE does not pass the argument %q to javac", a)
		}
		if a == "-proc:none" {
			m.processed = false
		}
	}
	if strings.TrimSpace(c.Preview) == "true" {
		return notHere("FRE compiles without preview features")
	}
	if strings.TrimSpace(p.expand(c.Proc)) == "none" {
		m.processed = false
	}
	return nil
}

// fits returns an error if the project needs a later Java than the JDK of the given version has.
func (m *mavenProject) fits(jdk string) error {
	major, _, _ := strings.Cut(jdk, ".")
	have := javaRelease(major)
	if have == 0 || m.release <= have {
		return nil
	}
	return &template.FieldError{Field: "base", Message: fmt.Sprintf("%s is of Java %d, and the base has Java %d: take the base of a later release (java:trixie), or lower maven.compiler.release", pomFile, m.release, have)}
}

// directory returns a directory below the project's top.
func (p *projectPom) directory(element, name string) (string, error) {
	name = strings.TrimSpace(name)
	for _, base := range []string{"${project.basedir}/", "${basedir}/"} {
		name = strings.TrimPrefix(name, base)
	}
	name = p.expand(name)
	clean := path.Clean(name)
	if name == "" || !filepath.IsLocal(clean) || strings.ContainsAny(clean, "\\\x00\n\r$") {
		return "", notHere("%s %q is no directory below the project's", element, name)
	}
	return clean, nil
}

var variable = regexp.MustCompile(`\$\{([A-Za-z0-9_.-]+)\}`)

const maxValue = 1 << 10 // of a property that names a directory or a release

// expand replaces the project's own properties by their values; unknown ones stay.
func (p *projectPom) expand(s string) string {
	for range 8 {
		next := variable.ReplaceAllStringFunc(s, func(v string) string {
			if value := p.values[v[2:len(v)-1]]; value != "" && len(value) <= maxValue {
				return value
			}
			return v
		})
		if next == s || len(next) > maxValue {
			break
		}
		s = next
	}
	return strings.TrimSpace(s)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// javaRelease parses a release of Java, "17" or the old form "1.8"; 0 if malformed.
func javaRelease(s string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "1."))
	if err != nil || n < 0 || n > 1000 {
		return 0
	}
	return n
}

// plain returns a pom with only the project's dependencies, for Maven to resolve. ok is false if
// the dependencies rely on more than these elements. Nothing else in the file reaches Maven: no
// plugin, no extension and no repository.
func (p *projectPom) plain() (text []byte, ok bool) {
	if p.Parent != nil || len(p.Profiles) > 0 || p.Repositories != nil || p.Plugins != nil {
		return nil, false
	}
	out := pom{
		ModelVersion: "4.0.0", Group: cmp.Or(p.Group, "fre"), Artifact: cmp.Or(p.Artifact, "function"), Version: cmp.Or(p.Version, "0"),
		Packaging: "pom", Managed: p.Managed, Dependencies: slices.Concat(p.Dependencies, p.processors()),
	}
	for _, v := range p.Properties.List {
		if !plainWord.MatchString(v.XMLName.Local) {
			return nil, false
		}
		out.Properties.List = append(out.Properties.List, property{xml.Name{Local: v.XMLName.Local}, v.Value})
	}
	out.Dependencies = slices.DeleteFunc(out.Dependencies, func(d dependency) bool { return strings.TrimSpace(d.Scope) == "test" })
	for _, d := range slices.Concat(p.Managed, p.Dependencies) {
		if strings.TrimSpace(d.Scope) == "system" {
			return nil, false
		}
	}
	text, err := xml.MarshalIndent(out, "", "  ")
	return text, err == nil
}

// processors returns the annotation processors that the compiler plugin names, as dependencies for
// the compiler only.
func (p *projectPom) processors() []dependency {
	var out []dependency
	for _, g := range p.Build.Plugins {
		if strings.TrimSpace(g.Artifact) != "maven-compiler-plugin" {
			continue
		}
		configs := []pomConfiguration{g.Config}
		for _, e := range g.Executions {
			configs = append(configs, e.Config)
		}
		for _, c := range configs {
			for _, d := range c.Processors {
				d.Scope = "provided"
				if !slices.ContainsFunc(slices.Concat(p.Dependencies, out), func(have dependency) bool { return have.Group == d.Group && have.Artifact == d.Artifact }) {
					out = append(out, d)
				}
			}
		}
	}
	return out
}

// provides reports whether a dependency of the project is for the compiler only.
func (p *projectPom) provides() bool {
	all := slices.Concat(p.Dependencies, p.Managed, p.processors())
	return slices.ContainsFunc(all, func(d dependency) bool { return strings.TrimSpace(d.Scope) == "provided" })
}

// Requests returns the pom of a Maven project.
func (Runtime) Requests(code fs.FS) (site, file string, text []byte, err error) {
	info, err := fs.Stat(code, pomFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil, nil
	}
	if err != nil {
		return "maven", "", nil, image.FileFault(pomFile, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxPom {
		return "maven", "", nil, &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s: not a file of at most 1 MiB", pomFile)}
	}
	if text, err = fs.ReadFile(code, pomFile); err != nil {
		return "maven", "", nil, image.FileFault(pomFile, err)
	}
	p, err := parsePom(text)
	if err != nil {
		return "maven", "", nil, err
	}
	m, err := p.maven()
	source := mavenSource
	if err == nil {
		source = m.source
	}
	if !isDir(code, source) {
		return "", "", nil, nil // a pom beside a finished jar
	}
	return "maven", pomFile, text, err
}

func isDir(code fs.FS, name string) bool {
	info, err := fs.Stat(code, name)
	return err == nil && info.IsDir()
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
