package failure_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/fre-engine/fre/failure"
)

// TestOf: the outermost code counts, and a code changes neither the text nor what errors.Is finds.
func TestOf(t *testing.T) {
	plain := errors.New("plain")
	sentinel := failure.New(failure.NotFound, "no such event", "list them")
	for name, c := range map[string]struct {
		err  error
		code failure.Code
		text string
		is   error
	}{
		"none":      {plain, "", "plain", plain},
		"new":       {sentinel, failure.NotFound, "no such event", sentinel},
		"wrapped":   {fmt.Errorf("e1: %w", sentinel), failure.NotFound, "e1: no such event", sentinel},
		"marked":    {failure.Wrap(failure.Gone, fs.ErrNotExist, ""), failure.Gone, "file does not exist", fs.ErrNotExist},
		"outermost": {failure.Wrap(failure.Conflict, fmt.Errorf("replay: %w", sentinel), ""), failure.Conflict, "replay: no such event", sentinel},
		"second":    {fmt.Errorf("%w: %w", plain, sentinel), failure.NotFound, "plain: no such event", sentinel},
		"hinted":    {failure.Hint(sentinel, "try"), failure.NotFound, "no such event", sentinel},
		"joined":    {errors.Join(plain, sentinel), failure.NotFound, "plain\nno such event", sentinel},
	} {
		if got := failure.Of(c.err); got != c.code || c.err.Error() != c.text || !errors.Is(c.err, c.is) {
			t.Errorf("%s: %v has the code %q, want %q with the text %q", name, c.err, got, c.code, c.text)
		}
	}
	if failure.Of(nil) != "" || failure.Next(nil) != "" {
		t.Error("nil has a code or a next step")
	}
	if next := failure.Next(fmt.Errorf("e1: %w", sentinel)); next != "list them" {
		t.Errorf("the next step is %q", next)
	}
	if next := failure.Next(fmt.Errorf("e2: %w", failure.Hint(sentinel, "try"))); next != "try" {
		t.Errorf("the next step of a hint is %q", next)
	}
	if _, ok := failure.RetryAfter(sentinel); ok {
		t.Error("an error without RetryAfter asks to wait")
	}
	if wait, ok := failure.RetryAfter(fmt.Errorf("e2: %w", slow{})); !ok || wait != time.Second {
		t.Errorf("RetryAfter is %s, %t", wait, ok)
	}
}

type slow struct{}

func (slow) Error() string             { return "too many" }
func (slow) Code() failure.Code        { return failure.SlowDown }
func (slow) RetryAfter() time.Duration { return time.Second }
