// Package docs checks that the documents tell the truth about the tree: links
// lead somewhere, and make targets, commands, flags, source files, tests and benchmarks exist.
// Each promise of SPECIFICATION.md has a test or benchmark; docs/promises.md has
// a row for each test of the tree.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/test/security"
)

var (
	// [text](target) outside code; an inline code span cannot hold a link.
	linkPattern = regexp.MustCompile(`\[[^\]\n]*\]\(([^)\s]+)\)`)
	// A make command: alone in a code span, or at the start of a line of a code block.
	makePattern   = regexp.MustCompile("(?m)(?:`|^\\s*(?:sudo )?)make ((?:[a-z][a-z0-9-]* ?)+)")
	targetPattern = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	// `dir.TestName`, `dir.TestName/case`, `dir.BenchmarkName`, `dir.FuzzName`: dir is
	// a package directory.
	keeperPattern = regexp.MustCompile("`([a-z0-9/_-]+)\\.((?:Test|Benchmark|Fuzz)\\w*)((?:/[^`/]+)*)`")
	testPattern   = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	// A command line of fre, and its end: a pipe, a comment, another command, the arguments of
	// a program that the command runs.
	commandPattern = regexp.MustCompile(`^(?:\$ )?(?:\w+=\S* )*(?:\w+=\$\()?(?:sudo )?(?:bin/)?fre ([a-z-].*)`)
	commandEnd     = regexp.MustCompile(` [|#>…]| &&|;| -- |\)$`)
	flagPattern    = regexp.MustCompile(`^--?[a-z][a-z-]*$`)
	// `dir/file.go`: a source file by its path in the tree.
	sourcePattern = regexp.MustCompile("`([a-z0-9][A-Za-z0-9_.-]*)(/[A-Za-z0-9_./-]+\\.(?:go|c|h|sh|py|js))`")
	codeSpan      = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// documents returns the Markdown files of the tree, without hidden directories and testdata.
func documents(tree fs.FS) ([]string, error) {
	var docs []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) == ".md" {
			docs = append(docs, name)
		}
		return nil
	})
	return docs, err
}

// checkLinks returns a line for every relative link without a target.
func checkLinks(tree fs.FS) ([]string, error) {
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		text, err := fs.ReadFile(tree, doc)
		if err != nil {
			return nil, err
		}
		for _, m := range linkPattern.FindAllStringSubmatch(codeSpan.ReplaceAllString(string(text), ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := doc
			if target != "" {
				file = path.Join(path.Dir(doc), target)
			}
			if _, err := fs.Stat(tree, file); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: link to %s: no such file", doc, m[1]))
				continue
			}
			if anchor == "" || path.Ext(file) != ".md" {
				continue
			}
			linked, err := fs.ReadFile(tree, file)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(anchors(string(linked)), anchor) {
				wrong = append(wrong, fmt.Sprintf("%s: link to %s: no such heading", doc, m[1]))
			}
		}
	}
	return wrong, nil
}

// anchors returns GitHub's anchors of a document's headings.
func anchors(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		title := strings.TrimLeft(line, "#")
		if len(title) == len(line) || !strings.HasPrefix(title, " ") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(title)))
		names = append(names, name)
	}
	return names
}

// checkIndex returns a line for every page below docs and bench/docs without a link from the
// nearest README.md.
func checkIndex(tree fs.FS) ([]string, error) {
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		dir := path.Dir(doc)
		top := "docs"
		if dir == "bench/docs" {
			top = dir
		}
		if dir != top && !strings.HasPrefix(dir, top+"/") || doc == top+"/README.md" {
			continue
		}
		if path.Base(doc) == "README.md" {
			dir = path.Dir(dir)
		}
		for dir != top && !slices.Contains(docs, path.Join(dir, "README.md")) {
			dir = path.Dir(dir)
		}
		index := path.Join(dir, "README.md")
		text, err := fs.ReadFile(tree, index)
		if err != nil {
			return nil, err
		}
		if !strings.Contains(string(text), "]("+strings.TrimPrefix(doc, dir+"/")+")") {
			wrong = append(wrong, fmt.Sprintf("%s: no link to %s", index, doc))
		}
	}
	return wrong, nil
}

// checkTargets returns a line for every make target in a document that the Makefile lacks.
func checkTargets(tree fs.FS) ([]string, error) {
	makefile, err := fs.ReadFile(tree, "Makefile")
	if err != nil {
		return nil, err
	}
	targets := map[string]bool{}
	for _, m := range targetPattern.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		text, err := fs.ReadFile(tree, doc)
		if err != nil {
			return nil, err
		}
		for _, m := range makePattern.FindAllStringSubmatch(codeOf(string(text)), -1) {
			for target := range strings.FieldsSeq(m[1]) {
				if !targets[target] {
					wrong = append(wrong, fmt.Sprintf("%s: make %s: no such target", doc, target))
				}
			}
		}
	}
	return wrong, nil
}

// codeOf returns the code of a document with its fences and quotes.
func codeOf(text string) string {
	return strings.Join(codeSpan.FindAllString(text, -1), "\n")
}

// checkCommands returns a line for every command and flag of fre in a document that docs/cli.md
// lacks, which is generated from the program.
func checkCommands(tree fs.FS) ([]string, error) {
	const reference = "docs/cli.md"
	text, err := fs.ReadFile(tree, reference)
	if err != nil {
		return nil, err
	}
	commands := map[string]string{} // the text of each section, by its heading
	for section := range strings.SplitSeq(string(text), "\n## ") {
		name, body, _ := strings.Cut(section, "\n")
		commands[name] = body
	}
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		text, err := fs.ReadFile(tree, doc)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(strings.ReplaceAll(codeOf(string(text)), "`", "\n")) {
			m := commandPattern.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			command, args := "fre", strings.Fields(commandEnd.Split(m[1], 2)[0])
			for len(args) > 0 && commands[command+" "+args[0]] != "" {
				command, args = command+" "+args[0], args[1:]
			}
			if command == "fre" && len(args) > 0 && args[0] != "help" && args[0] != "exit-codes" && !strings.HasPrefix(args[0], "-") {
				wrong = append(wrong, fmt.Sprintf("%s: fre %s: no such command", doc, args[0]))
				continue
			}
			for _, arg := range args {
				name, _, _ := strings.Cut(arg, "=")
				if !flagPattern.MatchString(name) || name == "-h" || name == "--help" || name == "--socket" {
					continue
				}
				if !regexp.MustCompile(`(?m)^ +(-\w, )?` + name + `[, ]`).MatchString(commands[command]) {
					wrong = append(wrong, fmt.Sprintf("%s: %s %s: no such flag", doc, command, name))
				}
			}
		}
	}
	return wrong, nil
}

// checkTests returns a line for every test and benchmark in a document that the tree lacks.
func checkTests(tree fs.FS) ([]string, error) {
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		text, err := fs.ReadFile(tree, doc)
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(string(text), "\n") {
			lines, err := missing(tree, line)
			if err != nil {
				return nil, err
			}
			for _, l := range lines {
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s", doc, i+1, l))
			}
		}
	}
	return wrong, nil
}

// missing returns a line for every test, benchmark and case in text that the tree lacks.
func missing(tree fs.FS, text string) ([]string, error) {
	var wrong []string
	for _, k := range keeperPattern.FindAllStringSubmatch(text, -1) {
		tests, err := testsOf(tree, k[1])
		if err != nil {
			return nil, err
		}
		if !hasTest(tests, k[2]) {
			wrong = append(wrong, fmt.Sprintf("no %s in the tests of %s", k[2], k[1]))
		}
		// A case appears as a string literal of its own.
		for _, name := range strings.Split(k[3], "/")[1:] {
			if !strings.Contains(tests, strconv.Quote(name)) {
				wrong = append(wrong, fmt.Sprintf("no case %q in the tests of %s", name, k[1]))
			}
		}
	}
	return wrong, nil
}

// checkPromises returns a line for every row of SPECIFICATION.md's tables without a test, benchmark
// or make target; checkTests finds missing tests.
func checkPromises(tree fs.FS) ([]string, error) {
	const doc = "SPECIFICATION.md"
	text, err := fs.ReadFile(tree, doc)
	if err != nil {
		return nil, err
	}
	var wrong []string
	rows, number := 0, 0
	for line := range strings.Lines(string(text)) {
		number++
		row := strings.TrimSpace(line)
		if !strings.HasPrefix(row, "|") || strings.HasPrefix(row, "|---") || strings.HasPrefix(row, "| Promise ") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(row, "|"), "|")
		last := cells[len(cells)-1]
		if !keeperPattern.MatchString(last) && !makePattern.MatchString(last) {
			wrong = append(wrong, fmt.Sprintf("%s:%d: no test or benchmark enforces this promise: %s", doc, number, row))
		}
	}
	if rows == 0 {
		wrong = append(wrong, doc+": no promises found")
	}
	return wrong, nil
}

// testsOf returns the text of the _test.go files in dir.
func testsOf(tree fs.FS, dir string) (string, error) {
	files, err := fs.Glob(tree, path.Join(dir, "*_test.go"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, file := range files {
		text, err := fs.ReadFile(tree, file)
		if err != nil {
			return "", err
		}
		all.WriteString("\n")
		all.Write(text)
	}
	return all.String(), nil
}

// hasTest reports whether the text of a package's tests has the named test.
func hasTest(text, name string) bool { return strings.Contains(text, "\nfunc "+name+"(") }

// checkAttacks compares the table of docs/threat-model.md whose heading begins
// with "Attack" with security.Rows: the same attacks by the same tests, in the same order, each
// with a defence. It returns a line for every difference, for every test that does
// not exist, and for every test of test/security that is in no row.
func checkAttacks(tree fs.FS) ([]string, error) {
	const doc, dir = "docs/threat-model.md", "test/security"
	text, err := fs.ReadFile(tree, doc)
	if err != nil {
		return nil, err
	}
	var wrong, table []string
	inTable := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case strings.HasPrefix(line, "| Attack |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			if len(cells) != 3 || strings.TrimSpace(cells[1]) == "" {
				wrong = append(wrong, fmt.Sprintf("%s: want attack, defence and test: %s", doc, strings.TrimSpace(line)))
				continue
			}
			table = append(table, strings.TrimSpace(cells[0])+" | "+strings.TrimSpace(cells[2]))
		}
	}
	var rows []string
	named := map[string]bool{}
	for _, row := range security.Rows {
		var tests []string
		for _, name := range row.Tests {
			named[name] = true
			tests = append(tests, "`"+name+"`")
			pkg, test, _ := strings.Cut(name, ".")
			text, err := testsOf(tree, pkg)
			if err != nil {
				return nil, err
			}
			if !hasTest(text, test) {
				wrong = append(wrong, fmt.Sprintf("%s: no %s in the tests of %s", row.Attack, test, pkg))
			}
		}
		rows = append(rows, row.Attack+" | "+strings.Join(tests, ", "))
	}
	spec, err := fs.ReadFile(tree, "SPECIFICATION.md")
	if err != nil {
		return nil, err
	}
	if want := fmt.Sprintf("each of the %d attacks", len(rows)); !strings.Contains(string(spec), want) {
		wrong = append(wrong, fmt.Sprintf("SPECIFICATION.md: no %q: %s has so many", want, doc))
	}
	if diff := cmp.Diff(rows, table); diff != "" {
		wrong = append(wrong, fmt.Sprintf("%s and %s/rows.go (-rows +table):\n%s", doc, dir, diff))
	}
	tests, err := testsOf(tree, dir)
	if err != nil {
		return nil, err
	}
	for _, m := range testPattern.FindAllStringSubmatch(tests, -1) {
		if name := dir + "." + m[1]; m[1] != "TestMain" && !named[name] {
			wrong = append(wrong, fmt.Sprintf("%s is in no row of %s/rows.go", name, dir))
		}
	}
	return wrong, nil
}

// checkSources returns a line for every source file in a document that the tree lacks. A path
// counts if its first directory is a directory of the tree.
func checkSources(tree fs.FS) ([]string, error) {
	docs, err := documents(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, doc := range docs {
		text, err := fs.ReadFile(tree, doc)
		if err != nil {
			return nil, err
		}
		for _, m := range sourcePattern.FindAllStringSubmatch(string(text), -1) {
			if _, err := fs.Stat(tree, m[1]); err != nil {
				continue // a file of another tree, such as a function's
			}
			if _, err := fs.Stat(tree, m[1]+m[2]); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %s%s: no such file", doc, m[1], m[2]))
			}
		}
	}
	return wrong, nil
}

var checks = []struct {
	name  string
	check func(fs.FS) ([]string, error)
}{
	{"links", checkLinks},
	{"index", checkIndex},
	{"make targets", checkTargets},
	{"commands", checkCommands},
	{"tests", checkTests},
	{"source files", checkSources},
	{"promises", checkPromises},
	{"attacks", checkAttacks},
}

func TestDocuments(t *testing.T) {
	tree := os.DirFS("../..")
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			wrong, err := c.check(tree)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range wrong {
				t.Error(line)
			}
		})
	}
}

// Each check of the documents finds its kind of mistake.
func TestChecks(t *testing.T) {
	tree := fstest.MapFS{
		"Makefile": {Data: []byte("test: build ## all\nbuild:\n\techo\n")},
		"README.md": {Data: []byte("# A & b\n[good](docs/a.md#two-words) [self](#a--b) [web](https://x.org/y)\n" +
			"[bad](docs/b.md) [bad](docs/a.md#three) `[not a link](x)`\nwe make nothing\n" +
			"`make test`, `make tests`\n```\n[x](y)\nsudo make build nothing\n```\n")},
		"docs/a.md": {Data: []byte("## Two words\n[up](../README.md)\n`fre image ls -q`, `fre image rm --al X`, `store.TestFour`, `store/gone.go`, `store/store_test.go`, `code/app.py`\n" +
			"```\nFRE_X=1 sudo bin/fre serve --state DIR & # fre --socket\nid=$(fre images)\nfre image run -- x --flag | y\nfre image rm --all=1 --help\n```\n")},
		"docs/cli.md": {Data: []byte("# Commands\n\n## fre\n\nall\n\n## fre serve\n\n  --state string\n\n## fre image\n\nx\n\n" +
			"## fre image ls\n\n  -q, --quiet\n\n## fre image rm\n\n      --all   all\n\n## fre image run\n\nx\n")},
		"docs/README.md":       {Data: []byte("[cli](cli.md) [old](old/README.md)\n")},
		"docs/old/README.md":   {Data: []byte("[one](more/one.md)\n")},
		"docs/old/more/one.md": {Data: []byte("one\n")},
		"docs/old/two.md":      {Data: []byte("two\n")},
		"bench/docs/README.md": {Data: []byte("[in](in.md)\n")},
		"bench/docs/in.md":     {Data: []byte("`make in`\n")},
		"bench/docs/out.md":    {Data: []byte("[bad](in.md#in)\n")},
		".cache/x.md":          {Data: []byte("[bad](nowhere)")},
		"store/store_test.go":  {Data: []byte("package store\n\nfunc TestOne(t *testing.T) { t.Run(\"a b\", nil) }\n")},
		"store/bench_test.go":  {Data: []byte("package store\n\nfunc BenchmarkTwo(b *testing.B) {}\n")},
		"store/not_a_test.txt": {Data: []byte("\nfunc TestThree(t *testing.T) {}\n")},
		"SPECIFICATION.md": {Data: []byte("| Promise | Kept by |\n|---|---|\n" +
			"| a | `store.TestOne`, `store.BenchmarkTwo` |\n| b | `store.TestThree` |\n| c | nobody |\n" +
			"| d | |\n| e | `image.TestOne` |\n| f | `make test` |\n" +
			"| g | `store.TestOne/a b` |\n| h | `store.TestOne/c` |\n")},
	}
	want := map[string][]string{
		"links": {
			"README.md: link to docs/b.md: no such file",
			"README.md: link to docs/a.md#three: no such heading",
			"bench/docs/out.md: link to in.md#in: no such heading",
		},
		"index": {
			"bench/docs/README.md: no link to bench/docs/out.md",
			"docs/README.md: no link to docs/a.md",
			"docs/old/README.md: no link to docs/old/two.md",
		},
		"make targets": {
			"README.md: make tests: no such target",
			"README.md: make nothing: no such target",
			"bench/docs/in.md: make in: no such target",
		},
		"commands": {
			"docs/a.md: fre image rm --al: no such flag",
			"docs/a.md: fre images: no such command",
		},
		"tests": {
			"SPECIFICATION.md:4: no TestThree in the tests of store",
			"SPECIFICATION.md:7: no TestOne in the tests of image",
			`SPECIFICATION.md:10: no case "c" in the tests of store`,
			"docs/a.md:3: no TestFour in the tests of store",
		},
		"source files": {"docs/a.md: store/gone.go: no such file"},
		"promises": {
			"SPECIFICATION.md:5: no test or benchmark enforces this promise: | c | nobody |",
			"SPECIFICATION.md:6: no test or benchmark enforces this promise: | d | |",
		},
	}
	for _, c := range checks {
		if c.name == "attacks" {
			continue // TestCheckAttacks tests this check
		}
		t.Run(c.name, func(t *testing.T) {
			got, err := c.check(tree)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want[c.name], got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	empty := fstest.MapFS{"SPECIFICATION.md": {Data: []byte("# Nothing\n")}}
	if got, err := checkPromises(empty); err != nil || len(got) != 1 {
		t.Errorf("checkPromises without a table = %q, %v; want one finding", got, err)
	}
}

// The check of attacks finds a wrong row, a missing row and a missing test.
func TestCheckAttacks(t *testing.T) {
	row := security.Rows[0]
	tree := fstest.MapFS{
		"docs/threat-model.md": {Data: []byte("| Attack | Stopped by | Test |\n|---|---|---|\n| " +
			row.Attack + " | x | `" + row.Tests[0] + "` |\n| y | | z |\n\n| a | b |\n")},
		"SPECIFICATION.md":        {Data: []byte("each of the 3 attacks")},
		"test/security/a_test.go": {Data: []byte("package security\n\nfunc TestMore(t *testing.T) {}\n")},
	}
	got, err := checkAttacks(tree)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{
		"want attack, defence and test: | y | | z |", "test/security.TestMore is in no row",
		row.Attack + ": no TestOverwriteRuntime", "-rows +table", fmt.Sprintf("no \"each of the %d attacks\"", len(security.Rows)),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
