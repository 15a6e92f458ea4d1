package java

import (
	"encoding/xml"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestPom: A pom.xml gives the settings of the compiler; a project that needs a plugin is refused.
func TestPom(t *testing.T) {
	pom := func(body string) string {
		return `<project xmlns="http://maven.apache.org/POM/4.0.0"><groupId>a</groupId><artifactId>b</artifactId><version>1</version>` + body + `</project>`
	}
	plugin := func(name, body string) string {
		return pom(`<build><plugins><plugin><artifactId>` + name + `</artifactId>` + body + `</plugin></plugins></build>`)
	}
	const execution = `<executions><execution><goals><goal>go</goal></goals></execution></executions>`
	usual := mavenProject{source: "src/main/java", resources: []string{"src/main/resources"}, encoding: "UTF-8", processed: true}
	with := func(change func(*mavenProject)) mavenProject {
		m := usual
		change(&m)
		return m
	}
	tests := map[string]struct {
		text string
		want mavenProject
		err  string
	}{
		"nothing": {text: pom(""), want: usual},
		"release": {
			text: pom(`<properties><java>21</java><maven.compiler.release>${java}</maven.compiler.release></properties>`),
			want: with(func(m *mavenProject) { m.release = 21 }),
		},
		"old release": {text: pom(`<properties><maven.compiler.source>1.8</maven.compiler.source></properties>`), want: with(func(m *mavenProject) { m.release = 8 })},
		"release of a parent's": {
			text: pom(`<parent><groupId>x</groupId></parent><properties><maven.compiler.release>${java}</maven.compiler.release></properties>`),
			want: with(func(m *mavenProject) { m.parent = true }),
		},
		"property of itself": {text: pom(`<properties><maven.compiler.release>${a}</maven.compiler.release><a>${a}${a}</a></properties>`), want: usual},
		"directories": {
			text: pom(`<build><sourceDirectory>${project.basedir}/java</sourceDirectory><resources><resource><directory>a</directory></resource><resource><directory>b/c/</directory></resource></resources></build>`),
			want: with(func(m *mavenProject) { m.source, m.resources = "java", []string{"a", "b/c"} }),
		},
		"harmless plugin":            {text: plugin("maven-surefire-plugin", execution), want: usual},
		"plugin that nothing runs":   {text: plugin("exec-maven-plugin", ""), want: usual},
		"shade":                      {text: plugin("maven-shade-plugin", execution), want: usual},
		"compiler":                   {text: plugin("maven-compiler-plugin", `<configuration><release>11</release><compilerArgs><arg>-parameters</arg><arg>-proc:none</arg></compilerArgs></configuration>`), want: with(func(m *mavenProject) { m.release, m.processed = 11, false })},
		"processors":                 {text: plugin("maven-compiler-plugin", `<configuration><annotationProcessorPaths><path><groupId>p</groupId><artifactId>q</artifactId><version>1</version></path></annotationProcessorPaths></configuration>`), want: usual},
		"profile that is not active": {text: pom(`<profiles><profile><build><plugins><plugin><artifactId>x</artifactId>` + execution + `</plugin></plugins></build></profile></profiles>`), want: usual},

		"active profile":      {text: pom(`<profiles><profile><activation><activeByDefault>true</activeByDefault></activation><build><plugins><plugin><artifactId>kotlin-maven-plugin</artifactId>` + execution + `</plugin></plugins></build></profile></profiles>`), err: "kotlin-maven-plugin"},
		"plugin":              {text: plugin("protobuf-maven-plugin", execution), err: "the plugin protobuf-maven-plugin (go) may change the result"},
		"unpacking":           {text: plugin("maven-dependency-plugin", strings.ReplaceAll(execution, "go<", "unpack<")), err: "(unpack)"},
		"extension":           {text: plugin("x", "<extensions>true</extensions>"), err: "extends Maven"},
		"relocation":          {text: plugin("maven-shade-plugin", `<configuration><relocations><relocation><pattern>a</pattern></relocation></relocations></configuration>`), err: "relocates"},
		"argument":            {text: plugin("maven-compiler-plugin", `<configuration><compilerArgs><arg>--add-exports</arg></compilerArgs></configuration>`), err: `"--add-exports"`},
		"preview":             {text: plugin("maven-compiler-plugin", `<configuration><enablePreview>true</enablePreview></configuration>`), err: "preview"},
		"other compiler":      {text: plugin("maven-compiler-plugin", `<configuration><compilerId>groovy-eclipse-compiler</compilerId></configuration>`), err: "groovy"},
		"processors, parent":  {text: pom(`<parent/><build><plugins><plugin><artifactId>maven-compiler-plugin</artifactId><configuration><annotationProcessorPaths><path/></annotationProcessorPaths></configuration></plugin></plugins></build>`), err: "annotationProcessorPaths"},
		"modules":             {text: pom(`<packaging>pom</packaging><modules><module>a</module></modules>`), err: "a pom of 1 modules"},
		"war":                 {text: pom(`<packaging>war</packaging>`), err: "a war"},
		"filtering":           {text: pom(`<build><resources><resource><directory>a</directory><filtering>true</filtering></resource></resources></build>`), err: "filtering"},
		"absolute":            {text: pom(`<build><sourceDirectory>/etc</sourceDirectory></build>`), err: `"/etc"`},
		"outside":             {text: pom(`<build><resources><resource><directory>a/../../b</directory></resource></resources></build>`), err: `"a/../../b"`},
		"unknown property":    {text: pom(`<build><sourceDirectory>${other}/a</sourceDirectory></build>`), err: "${other}"},
		"other character set": {text: `<?xml version="1.0" encoding="ISO-8859-1"?>` + pom(""), err: "ISO-8859-1: save the file as UTF-8"},
		"no pom":              {text: "<html></html>", err: "pom.xml:"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := &mavenProject{}
			p, err := parsePom([]byte(test.text))
			if err == nil {
				m, err = p.maven()
			}
			if err != nil || test.err != "" {
				if err == nil || test.err == "" || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %q", err, test.err)
				}
				return
			}
			if diff := cmp.Diff(test.want, *m, cmp.AllowUnexported(mavenProject{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPlainPom: A simple project gets a reduced pom with only its dependencies.
func TestPlainPom(t *testing.T) {
	p, err := parsePom([]byte(`<project><groupId>a</groupId><properties><v>2</v></properties>
		<dependencyManagement><dependencies><dependency><groupId>g</groupId><artifactId>bom</artifactId><version>${v}</version><type>pom</type><scope>import</scope></dependency></dependencies></dependencyManagement>
		<dependencies><dependency><groupId>g</groupId><artifactId>x</artifactId><exclusions><exclusion><groupId>e</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency></dependencies>
		<build><extensions><extension><groupId>evil</groupId></extension></extensions><plugins><plugin><artifactId>maven-compiler-plugin</artifactId><configuration><annotationProcessorPaths>
			<path><groupId>g</groupId><artifactId>x</artifactId></path><path><groupId>p</groupId><artifactId>q</artifactId><version>3</version></path>
		</annotationProcessorPaths></configuration></plugin></plugins></build></project>`))
	if err != nil {
		t.Fatal(err)
	}
	text, ok := p.plain()
	if !ok || !p.provides() {
		t.Fatalf("plain %v, provides %v", ok, p.provides())
	}
	var got pom
	if err := xml.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	x := dependency{Group: "g", Artifact: "x", Exclusions: []exclusion{{"e", "*"}}}
	if diff := cmp.Diff([]dependency{x, {Group: "p", Artifact: "q", Version: "3", Scope: "provided"}}, got.Dependencies); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]dependency{{Group: "g", Artifact: "bom", Version: "${v}", Type: "pom", Scope: "import"}}, got.Managed); diff != "" {
		t.Error(diff)
	}
	if len(got.Properties.List) != 1 || got.Properties.List[0].XMLName.Local != "v" || got.Properties.List[0].Value != "2" || strings.Contains(string(text), "evil") {
		t.Errorf("got %s", text)
	}
	for _, text := range []string{
		"<project><parent/></project>", "<project><profiles><profile/></profiles></project>", "<project><repositories/></project>", "<project><pluginRepositories/></project>",
		"<project><dependencies><dependency><scope> system </scope></dependency></dependencies></project>",
	} {
		p, err := parsePom([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := p.plain(); ok {
			t.Errorf("%s is plain", text)
		}
	}
}

// TestRequests: Code is a Maven project if its source directory exists.
func TestRequests(t *testing.T) {
	pom, source := &fstest.MapFile{Data: []byte("<project/>")}, &fstest.MapFile{}
	bad := &fstest.MapFile{Data: []byte("<project><packaging>war</packaging></project>")}
	for name, test := range map[string]struct {
		files     fstest.MapFS
		site, err string
	}{
		"project":        {fstest.MapFS{"pom.xml": pom, "src/main/java/A.java": source}, "maven", ""},
		"no pom":         {fstest.MapFS{"src/main/java/A.java": source}, "", ""},
		"ready jar":      {fstest.MapFS{"pom.xml": bad, "app.jar": source}, "", ""},
		"not for FRE":    {fstest.MapFS{"pom.xml": bad, "src/main/java/A.java": source}, "maven", "a war"},
		"pom is no file": {fstest.MapFS{"pom.xml/a": source}, "maven", "not a file"},
	} {
		site, _, _, err := Runtime{}.Requests(test.files)
		if site != test.site || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %q, %v", name, site, err)
		}
	}
}

// FuzzPom: Any pom.xml is read or refused without a panic.
func FuzzPom(f *testing.F) {
	for _, s := range []string{
		"", "<project/>", "<project><parent/><packaging>jar</packaging></project>", `<?xml version="1.0" encoding="x"?><project/>`,
		`<!DOCTYPE p [<!ENTITY a "b">]><project><groupId>&a;</groupId></project>`,
		"<project><properties><a>${a}${a}${b}</a><b>${a}</b></properties><build><sourceDirectory>${a}</sourceDirectory></build></project>",
		"<project><build><resources><resource><directory>../..</directory></resource></resources></build></project>",
		"<project><properties><x:y>1</x:y></properties><dependencies><dependency><groupId>]]&gt;</groupId></dependency></dependencies></project>",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePom([]byte(s))
		if err != nil {
			return
		}
		if text, ok := p.plain(); ok {
			again, err := parsePom(text)
			if err != nil {
				t.Fatalf("%q: %v in %s", s, err, text)
			}
			if _, ok := again.plain(); !ok {
				t.Errorf("%q: not plain: %s", s, text)
			}
		}
		m, err := p.maven()
		if err != nil {
			return
		}
		for _, dir := range append(m.resources, m.source) {
			if !filepath.IsLocal(dir) || filepath.Clean(dir) != dir {
				t.Errorf("%q: directory %q", s, dir)
			}
		}
		if !plainWord.MatchString(m.encoding) || m.release < 0 {
			t.Errorf("%q: %+v", s, m)
		}
	})
}
