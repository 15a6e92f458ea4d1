package command

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/failure"
)

func TestPrintable(t *testing.T) {
	if got := Printable("a\x1b[31m\nb\u0085é"); got != `a\x1b[31m\nb\u0085é` {
		t.Errorf("Printable = %q", got)
	}
	if got := PrintableLines("a\x1b]0;x\a:\n\tb\r"); got != `a\x1b]0;x\a:`+"\n\tb"+`\r` {
		t.Errorf("PrintableLines = %q", got)
	}
}

// TestUsage: a mistake in the command line is a usage error that names the next step.
func TestUsage(t *testing.T) {
	for line, want := range map[string]struct{ message, next string }{
		"":              {"", ""},
		"images":        {`unknown command "images" for "prog": did you mean image?`, "prog --help lists the commands"},
		"image xyz":     {`unknown command "xyz" for "prog image"`, "prog image --help lists the commands"},
		"image ls x":    {"unknown command \"x\" for \"prog image ls\"\nusage: prog image ls [flags]", ""},
		"image ls -n x": {`invalid argument "x" for "-n, --number" flag: not a whole number`, "prog image ls --help lists the flags"},
		"image ls":      {"", ""},
	} {
		root := Root(&cobra.Command{Use: "prog"})
		image := Group(&cobra.Command{Use: "image"})
		ls := &cobra.Command{Use: "ls", Args: Args(cobra.NoArgs), RunE: func(*cobra.Command, []string) error { return nil }}
		ls.Flags().IntP("number", "n", 0, "")
		image.AddCommand(ls)
		root.AddCommand(image)
		err := Execute(t.Context(), root, strings.Fields(line), strings.NewReader(""), t.Output(), t.Output())
		if want.message == "" {
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
			continue
		}
		if usage := (UsageError{}); !errors.As(err, &usage) || err.Error() != want.message || failure.Next(err) != want.next {
			t.Errorf("%q: %v, then %q; want %+v", line, err, failure.Next(err), want)
		}
	}
}

// TestInterruptible: a command that fails after its context has ended was interrupted.
func TestInterruptible(t *testing.T) {
	broken := errors.New("broken")
	run := Interruptible(func(cmd *cobra.Command, _ []string) error { return errors.Join(cmd.Context().Err(), broken) })
	for _, interrupted := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if interrupted {
			cancel()
		}
		cmd := &cobra.Command{}
		cmd.SetContext(ctx)
		if err := run(cmd, nil); errors.Is(err, context.Canceled) != interrupted || errors.Is(err, broken) == interrupted {
			t.Errorf("interrupted %t: %v", interrupted, err)
		}
		cancel()
	}
}

func TestReport(t *testing.T) {
	var out strings.Builder
	Report(&out, "prog", "one\x1b", "")
	Report(&out, "prog", "two", "next\x1b")
	if want := "prog: one\\x1b\nprog: two\n     next\\x1b\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
