package docs

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write "+promisesPage+" anew")

// promisesPage lists every test, benchmark and fuzz target with its promise.
const promisesPage = "docs/promises.md"

const promisesHead = "# Promises\n\n" +
	"Every test, benchmark and fuzz target of FRE with its promise, by package. [SPECIFICATION.md](../SPECIFICATION.md) has the thirty promises that users rely on.\n\n" +
	"Written by `go test ./test/docs -update`. A row has the first sentence of the test's comment. A test without a comment keeps the sentence of its row; a new row has the words of the test's name. " +
	"A row of a removed test fails `make docs` until somebody deletes the row by hand: the commit says which test enforces the promise now.\n"

var (
	promisesRow     = regexp.MustCompile("^\\| `((?:Test|Benchmark|Fuzz)[^`]*)` \\| (.*) \\|$")
	promisesSection = regexp.MustCompile("^## `(.*)`$")
)

// keeper names a test, benchmark or fuzz target, with a case where name holds slashes.
type keeper struct{ dir, name string }

// testsIn returns the first sentence of the comment of each test, benchmark and fuzz target of the
// tree, without hidden directories and testdata.
func testsIn(tree fs.FS) (map[keeper]string, error) {
	tests := map[keeper]string{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name == "TestMain" || !keeperName.MatchString(f.Name.Name) {
				continue
			}
			tests[keeper{path.Dir(name), f.Name.Name}] = sentence(f.Name.Name, f.Doc.Text())
		}
		return nil
	})
	return tests, err
}

var keeperName = regexp.MustCompile(`^(Test|Benchmark|Fuzz)([^a-z]|$)`)

// sentence returns the first sentence of a test's comment as a table cell, without the test's name
// in front.
func sentence(name, comment string) string {
	s := new(doc.Package).Synopsis(comment)
	s = strings.TrimPrefix(strings.TrimPrefix(s, name+":"), name+" ")
	s = strings.TrimSuffix(strings.TrimSpace(s), ".")
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "](", "] (").Replace(s)
}

// words returns the words of a test's name: "full disk" for TestFullDisk.
func words(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "Test"), "Benchmark"), "Fuzz")
	letters := []rune(strings.ReplaceAll(name, "_", " "))
	var b strings.Builder
	for i, r := range letters {
		begins := unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
		if begins {
			b.WriteByte(' ')
		}
		alone := (i == 0 || begins) && (i+1 == len(letters) || !unicode.IsUpper(letters[i+1]))
		if alone {
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// readPromises returns the rows of the page.
func readPromises(page string) map[keeper]string {
	rows := map[keeper]string{}
	dir := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if m := promisesSection.FindStringSubmatch(line); m != nil {
			dir = m[1]
		} else if m := promisesRow.FindStringSubmatch(line); m != nil {
			rows[keeper{dir, m[1]}] = m[2]
		}
	}
	return rows
}

// promises returns the new page: the rows of all tests, and the rows of cases on the old page. It
// also returns a line for each row of a removed test or case. A test that has moved to another
// package takes its rows along.
func promises(tree fs.FS, page string) (string, []string, error) {
	tests, err := testsIn(tree)
	if err != nil {
		return "", nil, err
	}
	old := readPromises(page)
	rows := map[keeper]string{}
	for k, s := range tests {
		rows[k] = s
		if rows[k] == "" {
			rows[k] = old[k]
		}
	}
	var wrong []string
	for _, k := range slices.SortedFunc(maps.Keys(old), compareKeepers) {
		name, cases, isCase := strings.Cut(k.name, "/")
		at := keeper{k.dir, name}
		if _, ok := tests[at]; !ok {
			at = moved(tests, old, at)
		}
		if at.dir == "" {
			wrong = append(wrong, fmt.Sprintf("%s: no %s in the tests of %s: %s", promisesPage, name, k.dir, old[k]))
			continue
		}
		if !isCase {
			if rows[at] == "" {
				rows[at] = old[k]
			}
			continue
		}
		text, err := testsOf(tree, at.dir)
		if err != nil {
			return "", nil, err
		}
		for c := range strings.SplitSeq(cases, "/") {
			if !strings.Contains(text, strconv.Quote(c)) {
				wrong = append(wrong, fmt.Sprintf("%s: no case %q in the tests of %s: %s", promisesPage, c, at.dir, old[k]))
			}
		}
		rows[keeper{at.dir, k.name}] = old[k]
	}
	var b strings.Builder
	b.WriteString(promisesHead)
	dir := ""
	for _, k := range slices.SortedFunc(maps.Keys(rows), compareKeepers) {
		if k.dir != dir {
			dir = k.dir
			_, _ = fmt.Fprintf(&b, "\n## `%s`\n\n| Test | Promise |\n|---|---|\n", dir)
		}
		if rows[k] == "" {
			rows[k] = words(k.name)
		}
		_, _ = fmt.Fprintf(&b, "| `%s` | %s |\n", k.name, rows[k])
	}
	return b.String(), wrong, nil
}

// moved returns the only test without a row that has the name of a removed test. Of several such
// tests it returns the only one in a package with the same last name.
func moved(tests, old map[keeper]string, gone keeper) keeper {
	var found []keeper
	for k := range tests {
		if _, had := old[k]; k.name == gone.name && !had {
			found = append(found, k)
		}
	}
	if len(found) > 1 {
		found = slices.DeleteFunc(found, func(k keeper) bool { return path.Base(k.dir) != path.Base(gone.dir) })
	}
	if len(found) != 1 {
		return keeper{}
	}
	return found[0]
}

func compareKeepers(a, b keeper) int {
	return strings.Compare(a.dir+"\x00"+a.name, b.dir+"\x00"+b.name)
}

// checkPromisesPage returns a line for every missing or surplus row of the page.
func checkPromisesPage(tree fs.FS) ([]string, error) {
	page, err := fs.ReadFile(tree, promisesPage)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	want, wrong, err := promises(tree, string(page))
	if err != nil {
		return nil, err
	}
	have := readPromises(string(page))
	rows := readPromises(want)
	for _, k := range slices.SortedFunc(maps.Keys(rows), compareKeepers) {
		if text, ok := have[k]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: no row of %s.%s", promisesPage, k.dir, k.name))
		} else if text != rows[k] {
			wrong = append(wrong, fmt.Sprintf("%s: %s.%s: its comment says: %s", promisesPage, k.dir, k.name, rows[k]))
		}
	}
	if len(wrong) == 0 && string(page) != want {
		wrong = append(wrong, promisesPage+": not in order")
	}
	if len(wrong) > 0 {
		wrong = append(wrong, "go test ./test/docs -update writes "+promisesPage+"; rows of tests that are gone go by hand")
	}
	return wrong, nil
}

func TestPromisesPage(t *testing.T) {
	tree := os.DirFS("../..")
	if *update {
		page, err := fs.ReadFile(tree, promisesPage)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		text, wrong, err := promises(tree, string(page))
		if err != nil {
			t.Fatal(err)
		}
		if len(wrong) > 0 {
			t.Fatalf("tests that are gone; delete their rows by hand:\n%s", strings.Join(wrong, "\n"))
		}
		if err := os.WriteFile("../../"+promisesPage, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wrong, err := checkPromisesPage(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range wrong {
		t.Error(line)
	}
}

// The page follows comments, names and moves of tests. The row of a removed test is an error.
func TestPromises(t *testing.T) {
	tree := fstest.MapFS{
		"store/a_test.go": {Data: []byte("package store\n\n// TestPut: a file is whole | or absent. More.\nfunc TestPut(t *testing.T) { t.Run(\"full disk\", nil) }\n\n" +
			"func TestOldURL(t *testing.T) {}\n\nfunc TestNew(t *testing.T) {}\n\nfunc Testify() {}\n\nfunc TestMain(m *testing.M) {}\n")},
		"daemon/b_test.go": {Data: []byte("package daemon\n\nfunc BenchmarkMoved(b *testing.B) {}\n")},
	}
	old := "## `cmd`\n| `BenchmarkMoved` | moves fast |\n| `TestGone` | was true |\n## `store`\n| `TestNew` | by hand |\n| `TestPut` | stale |\n| `TestPut/full disk` | leaves nothing |\n| `TestPut/other` | x |\n"
	got, wrong, err := promises(tree, old)
	if err != nil {
		t.Fatal(err)
	}
	want := promisesHead + "\n## `daemon`\n\n| Test | Promise |\n|---|---|\n| `BenchmarkMoved` | moves fast |\n" +
		"\n## `store`\n\n| Test | Promise |\n|---|---|\n| `TestNew` | by hand |\n| `TestOldURL` | old URL |\n| `TestPut` | a file is whole \\| or absent |\n" +
		"| `TestPut/full disk` | leaves nothing |\n| `TestPut/other` | x |\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("page: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"docs/promises.md: no TestGone in the tests of cmd: was true",
		`docs/promises.md: no case "other" in the tests of store: x`,
	}, wrong); diff != "" {
		t.Errorf("faults: -want +got:\n%s", diff)
	}
	tree[promisesPage] = &fstest.MapFile{Data: []byte(old)}
	if wrong, err := checkPromisesPage(tree); err != nil || len(wrong) != 6 {
		t.Errorf("checkPromisesPage = %q, %v; want 2 rows gone, 2 missing, 1 stale, 1 hint", wrong, err)
	}
}
