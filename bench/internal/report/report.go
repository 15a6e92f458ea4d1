// Package report writes the results of a benchmark: all numbers as JSON, and a page for readers.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Raw writes the result of a benchmark as JSON into dir and returns the path. The file's name holds
// the benchmark's name and the time.
func Raw(dir, benchmark string, at time.Time, result any) (string, error) {
	path := filepath.Join(dir, benchmark+"-"+at.UTC().Format("20060102T150405Z")+".json")
	return path, JSON(path, result)
}

// JSON writes a result as one line and creates the directory of the path.
func JSON(path string, result any) error {
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return write(path, append(text, '\n'))
}

// Page writes a benchmark's tables as a page to path, with a note on the page's origin. An empty
// path writes nothing.
func Page(path, title, benchmark, tables string) error {
	if path == "" {
		return nil
	}
	head := fmt.Sprintf("# %s\n\nWritten by `make bench-%s`; `bench/%[2]s` describes the measurement.\n\n", title, benchmark)
	return write(path, []byte(head+tables))
}

// Publish prints the tables of a benchmark and writes the result with [Raw] and [Page].
func Publish(dir, page, title, benchmark string, at time.Time, result any, tables string) error {
	fmt.Print(tables)
	path, err := Raw(dir, benchmark, at, result)
	if err != nil {
		return err
	}
	fmt.Printf("\nRaw result: %s\n", path)
	return Page(page, title, benchmark, tables)
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
