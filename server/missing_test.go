package server

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// The next step names the faulty file, not always the template.
func TestNextOfFile(t *testing.T) {
	for file, want := range map[string]string{
		"fret.yaml": "correct the template", "main.py": "correct main.py, then build or deploy again", "lib/a.cjs": "correct lib/a.cjs,",
	} {
		next := errorOf(template.Errors{{File: file, Line: 1, Column: 1, Message: "no"}}).Next
		if !strings.HasPrefix(next, want) {
			t.Errorf("%s: %q", file, next)
		}
	}
}

// TestMissing: the error for a missing object has the words of package wording, and names the
// command that lists the objects of its kind.
func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		err           error
		message, next string
	}{
		{&engine.UnknownError{Function: "f"}, `there is no function "f"`, ""},
		{fmt.Errorf("image %q: %w", "a:1", fs.ErrNotExist), `there is no image "a:1"`, lists["image"]},
		{fmt.Errorf("commit: container %q: %w", "c: d", fs.ErrNotExist), `commit: container "c: d": does not exist`, ""},
		{fmt.Errorf("volume %q: %w", "v", fs.ErrNotExist), `there is no volume "v"`, ""},
		{fmt.Errorf("image sha256:1 is being removed: %w", fs.ErrNotExist), "image sha256:1 is being removed: does not exist", ""},
	} {
		got := errorOf(fmt.Errorf("remove: %w", tt.err))
		if want := "remove: " + tt.message; got.Message != want || got.Next != tt.next || got.Status != 404 {
			t.Errorf("%d %q, next %q; want %q, next %q", got.Status, got.Message, got.Next, want, tt.next)
		}
	}
}
