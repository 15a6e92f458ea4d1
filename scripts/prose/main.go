// Command prose counts vague words ("what", "who", "that", "it", …) in the comments of each
// package, in the comments of its tests, and in each Markdown page. The rate is the number of
// vague words per 100 words. A rate may be at most the limit in limits.txt for the package or page,
// by default 6. Limits only fall: a limit far above its rate must be lowered. make lint runs the
// command:
//
//	go run ./scripts/prose            reports rates above their limits, and limits to lower
//	go run ./scripts/prose -update    lowers limits to the rates, and never raises a limit
//
// The rate is a hint. A reader must understand each sentence at first reading.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// target is the limit of packages and pages without a line in limits.txt.
const target = 6.0

// slack is how far a limit above target may exceed its rate.
const slack = 0.5

// limitsFile is relative to the root of the tree.
const limitsFile = "scripts/prose/limits.txt"

var vague = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`what who whoever whose whom whatever other others such that those this these one ones it its
which there so they them their somebody someone something somewhere anybody anyone anything anywhere nobody nothing nowhere none
everybody everyone everything where`) {
		words[w] = true
	}
	return words
}()

var (
	word = regexp.MustCompile(`[A-Za-z']+`)
	code = regexp.MustCompile("(?s)```.*?```|`[^`]*`|\\]\\([^)]*\\)")
)

// rate counts words.
type rate struct{ words, vague int }

func (r *rate) add(text string) {
	for _, w := range word.FindAllString(text, -1) {
		r.words++
		if vague[strings.ToLower(w)] {
			r.vague++
		}
	}
}

// per100 returns the vague words in 100 words, with one decimal.
func (r *rate) per100() float64 {
	return math.Round(1000*float64(r.vague)/float64(max(1, r.words))) / 10
}

// fewest is the least number of words with a meaningful rate.
const fewest = 100

// measure returns the rates of all packages and pages below root, by path. The tests of a package
// count under PATH/*_test.go. measure leaves out generated files, and packages and pages with fewer
// than fewest words.
func measure(root string) (map[string]*rate, error) {
	rates := map[string]*rate{}
	at := func(name string) *rate {
		if rates[name] == nil {
			rates[name] = &rate{}
		}
		return rates[name]
	}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "bin"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go"):
			f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			if ast.IsGenerated(f) {
				return nil
			}
			of := filepath.Dir(name)
			if strings.HasSuffix(name, "_test.go") {
				of = filepath.Join(of, "*_test.go")
			}
			for _, c := range f.Comments {
				at(of).add(c.Text())
			}
		case strings.HasSuffix(name, ".md"):
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			at(name).add(code.ReplaceAllString(string(text), " "))
		}
		return nil
	})
	maps.DeleteFunc(rates, func(_ string, r *rate) bool { return r.words < fewest })
	return rates, err
}

// limits parses lines of "RATE PATH" and returns the rates by path.
func limits(text string) (map[string]float64, error) {
	out := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		number, name, ok := strings.Cut(s.Text(), " ")
		limit, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: bad line %q: write RATE PATH", limitsFile, s.Text())
		}
		out[name] = limit
	}
	return out, nil
}

// faults returns a message for each rate above its limit, each limit to lower, and each line of
// limits.txt to remove.
func faults(rates map[string]*rate, limits map[string]float64) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		r := rates[name].per100()
		limit, listed := limits[name]
		switch {
		case r > cmp.Or(limit, target):
			out = append(out, fmt.Sprintf("%s: %.1f vague words in 100, at most %.1f: name the things (CONTRIBUTING.md, prose)", name, r, cmp.Or(limit, target)))
		case listed && limit > max(r+slack, target):
			out = append(out, fmt.Sprintf("%s: the limit of %.1f is above the rate of %.1f: run go run ./scripts/prose -update", name, limit, r))
		case listed && r <= target:
			out = append(out, fmt.Sprintf("%s: the rate of %.1f needs no line in %s: run go run ./scripts/prose -update", name, r, limitsFile))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if rates[name] == nil {
			out = append(out, fmt.Sprintf("%s: no such package or page: remove the line from %s", name, limitsFile))
		}
	}
	return out
}

// lowered returns the new content of limits.txt. Without all, packages and pages without a limit
// get none; with all, for the first limits.txt, every rate above target becomes a limit.
func lowered(rates map[string]*rate, limits map[string]float64, all bool) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		r := rates[name].per100()
		limit, listed := limits[name]
		if r <= target || !listed && !all {
			continue
		}
		if listed {
			r = min(r, limit)
		}
		_, _ = fmt.Fprintf(&b, "%.1f %s\n", r, name)
	}
	return b.String()
}

func run(update bool) error {
	rates, err := measure(".")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(limitsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	known, failed := limits(string(text))
	if failed != nil {
		return failed
	}
	if update {
		return os.WriteFile(limitsFile, []byte(lowered(rates, known, err != nil)), 0o644)
	}
	if list := faults(rates, known); len(list) > 0 {
		return fmt.Errorf("prose: %d faults\n%s", len(list), strings.Join(list, "\n"))
	}
	return nil
}

func main() {
	update := flag.Bool("update", false, "lower the limits to the rates")
	flag.Parse()
	if err := run(*update); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
