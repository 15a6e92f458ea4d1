package sandbox

import (
	"os"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestProgramRuns: fre-spawner runs with a program file of any number, also with free numbers below
// it. os/exec first moves a child's files above the highest of them; the program's own file must
// survive this.
func TestProgramRuns(t *testing.T) {
	fretest.CheckLeaks(t)
	program, err := openProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	null := func(n int) (files []*os.File) {
		for range n {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		return files
	}
	below := null(8)
	for range 100 {
		f := null(1)
		defer f[0].Close()
		for _, b := range below {
			_ = b.Close()
		}
		if err := spawnerCommand(program, f, "exit").Run(); err != nil {
			t.Fatalf("with fd %d: %v", f[0].Fd(), err)
		}
		below = null(len(below))
	}
	for _, b := range below {
		_ = b.Close()
	}
}
