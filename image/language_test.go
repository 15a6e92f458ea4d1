package image

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// languages are the words for languages and ecosystems that only the packages of runtimes may use.
var languages = []string{"python", "node", "java", "php", "ruby", "go", "pip", "npm", "maven", "composer"}

// otherMeanings are texts of image and template in which one of languages is no language, by reason.
var otherMeanings = map[string][]string{
	"programs of Debian that its scripts call": {"register-python-package", "update-ca-certificates-java", "update-java-alternatives"},
	"names of modules that FRE imports":        {"go-containerregistry", "go-securesystemslib"},
	"names of files that hold FRE's code":      {"artifact.go", "part.go", "source.go", "recipe.go", "database.go"},
	"a node of a YAML tree":                    {"an unknown node"},
	"to go":                                    {"cookies and the like go along"},
}

// words splits a text as grep -w does, and an identifier at its capitals.
var words = regexp.MustCompile(`[A-Za-z0-9_]+`)

// foreignWords returns the languages that a text names.
func foreignWords(text string) []string {
	for _, texts := range otherMeanings {
		for _, other := range texts {
			text = strings.ReplaceAll(text, other, "")
		}
	}
	var found []string
	for _, word := range words.FindAllString(text, -1) {
		for _, language := range languages {
			if strings.EqualFold(word, language) {
				found = append(found, word)
			}
		}
	}
	return found
}

// foreignName returns the language that a name of a declaration names; "" for none. The words go and
// node are left out: a node belongs to a YAML tree, and to go is a verb.
func foreignName(name string) string {
	var spaced strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])) {
			spaced.WriteByte(' ')
		}
		spaced.WriteRune(r)
	}
	for _, word := range foreignWords(strings.ReplaceAll(spaced.String(), "_", " ")) {
		if !strings.EqualFold(word, "go") && !strings.EqualFold(word, "node") {
			return word
		}
	}
	return ""
}

// TestNoLanguage: No declaration, literal or comment of image and template names a language or an
// ecosystem: each runtime owns its language, each site its ecosystem.
func TestNoLanguage(t *testing.T) {
	for _, top := range []string{".", "../template"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			report := func(at token.Pos, word string) { t.Errorf("%s names %s", files.Position(at), word) }
			for _, group := range file.Comments {
				for _, comment := range group.List {
					if strings.HasPrefix(comment.Text, "//go:") {
						continue
					}
					for _, word := range foreignWords(comment.Text) {
						report(comment.Pos(), word)
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					return false
				case *ast.BasicLit:
					for _, word := range foreignWords(n.Value) {
						report(n.Pos(), word)
					}
				case *ast.Ident:
					if word := foreignName(n.Name); word != "" {
						report(n.Pos(), word)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignWords: The test finds words as a reader does.
func TestForeignWords(t *testing.T) {
	for text, want := range map[string]string{
		"the base python:trixie": "python", "NPM's registry": "NPM", "**/package.json": "", "pkg:npm/x": "npm", "x.node": "node", "update-java-alternatives": "",
	} {
		if got := strings.Join(foreignWords(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for name, want := range map[string]string{"PipEnv": "Pip", "ComposerHome": "Composer", "pip_index": "pip", "nodePosition": "", "Go": "", "pipeline": "", "NpmRC": "Npm"} {
		if got := foreignName(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
