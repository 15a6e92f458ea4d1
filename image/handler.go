package image

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/template"
)

// HandlerChecker is a Runtime that finds faults of the handler at build time that would otherwise
// appear at the first event, for example a missing module. It does not run the function.
type HandlerChecker interface {
	Runtime

	// CheckHandler compares the handler of t, of any contract, with the function's code. Faults are
	// *[template.FieldError].
	CheckHandler(t *template.Template, code CodeFiles) error
}

// CodeFiles are the files of a function's code.
type CodeFiles struct{ tree *codeTree }

// checkHandler has the runtime check the handler. A program must be able to run in the base.
func (b *Builder) checkHandler(t *template.Template, c *codeTree, rootfs string) error {
	switch {
	case t.Runtime == "native" && (t.Contract == template.ContractCGI || t.Contract == template.ContractLambda):
		return nil // a command line
	case t.Runtime == "native":
		return c.checkProgram(t, rootfs)
	}
	for _, r := range b.Runtimes {
		if checker, ok := r.(HandlerChecker); ok && r.Name() == t.Runtime {
			return checker.CheckHandler(t, CodeFiles{c})
		}
	}
	return nil
}

// Has reports whether the code has a file or directory with the name.
func (f CodeFiles) Has(name string) bool {
	_, ok := f.tree.entries[name]
	return ok
}

// Regular returns the regular files of the code, sorted.
func (f CodeFiles) Regular() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.tree.entries)), func(name string) bool { return !f.tree.entries[name].mode.IsRegular() })
}

const maxZipFiles = 100_000

// ZipNames returns the names in a zip archive of the code. Errors also: the file is no archive.
func (f CodeFiles) ZipNames(name string) ([]string, error) {
	file, err := f.tree.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := unpack.Zip(file, f.tree.entries[name].size, maxZipFiles)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(z.File))
	for i, e := range z.File {
		names[i] = e.Name
	}
	return names, nil
}

// CheckFile requires the file with the handler.
func (f CodeFiles) CheckFile(handler, name string) error {
	if f.Has(name) {
		return nil
	}
	return HandlerFault(handler, "no %s in the code: add the file, or name an existing file (found: %s)", name, f.Top())
}

// CheckModule requires a directory with the module's name, or a file with an extension that the
// language loads.
func (f CodeFiles) CheckModule(handler, module string, extensions ...string) error {
	for name := range f.tree.entries {
		if name == module || strings.HasPrefix(name, module+".") && slices.Contains(extensions, path.Ext(name)) {
			return nil
		}
	}
	return HandlerFault(handler, "no %s in the code: add the module, or name an existing module (found: %s)", module+extensions[0], f.Top())
}

// Top returns the first names at the top of the code, for errors.
func (f CodeFiles) Top() string { return f.tree.topNames() }

// HandlerFault returns the error for a handler that cannot work.
func HandlerFault(handler, format string, args ...any) error {
	return &template.FieldError{Field: "handler", Message: fmt.Sprintf("handler %q: %s", handler, fmt.Sprintf(format, args...))}
}

func (c *codeTree) topNames() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		if strings.Contains(name, "/") {
			continue
		}
		if len(names) == 8 {
			names = append(names, "…")
			break
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// checkProgram requires an executable ELF file, or a script whose interpreter the base has.
func (c *codeTree) checkProgram(t *template.Template, rootfs string) error {
	fail := func(format string, args ...any) error { return HandlerFault(t.Handler, format, args...) }
	base, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", rootfs, err)
	}
	defer unix.Close(base)

	name, inCode := strings.CutPrefix(t.Handler, "/"+codePrefix+"/")
	if !inCode && path.IsAbs(t.Handler) {
		if err := executable(base, t.Handler); err != nil {
			return fail("not a program of the base %s: %s", t.Base, err)
		}
		return nil
	}
	name = path.Clean(name)
	e, ok := c.entries[name]
	for range 16 {
		if e.mode&fs.ModeSymlink == 0 {
			break
		}
		name = path.Join(path.Dir(name), e.link)
		e, ok = c.entries[name]
	}
	switch {
	case !ok:
		return fail("no such file in the code: build the program first, or name an existing program (found: %s)", c.topNames())
	case !e.mode.IsRegular():
		return fail("is a directory, not a program")
	case e.mode&0o111 == 0:
		return fail("not executable: run chmod +x")
	}
	f, err := c.open(name)
	if err != nil {
		return fmt.Errorf("code: %w", err)
	}
	defer f.Close()
	interpreter, err := interpreters(f)
	if err != nil {
		return fail("%s", err)
	}
	if len(interpreter) == 0 {
		return nil
	}
	for _, program := range interpreter {
		if err = executable(base, program); err == nil {
			return nil
		}
	}
	return fail("interpreter %s is missing in the base %s (%s): link the program statically, or use a program of the base", interpreter[0], t.Base, err)
}

// interpreters returns the interpreters of which f needs one; none for a static program.
func interpreters(f io.ReaderAt) ([]string, error) {
	line, err := bufio.NewReader(io.NewSectionReader(f, 0, 256)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(line, "#!"):
		return scriptInterpreters(line)
	case strings.HasPrefix(line, elf.ELFMAG):
		return elfInterpreter(f)
	}
	return nil, errors.New(`neither an ELF program nor a script: a script's first line is like "#!/bin/sh"`)
}

func scriptInterpreters(line string) ([]string, error) {
	if strings.HasSuffix(line, "\r\n") {
		return nil, errors.New("first line ends in a carriage return: save the file with Unix line ends")
	}
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	switch {
	case len(words) == 0 || !path.IsAbs(words[0]):
		return nil, fmt.Errorf("first line %q names no interpreter by absolute path", strings.TrimSpace(line))
	case path.Base(words[0]) == "env" && len(words) > 1:
		words = slices.DeleteFunc(words[1:], func(w string) bool { return w[0] == '-' || strings.Contains(w, "=") })
		if len(words) == 0 {
			return nil, fmt.Errorf("first line %q names no program", strings.TrimSpace(line))
		}
		if path.IsAbs(words[0]) {
			return words[:1], nil
		}
		return []string{"/usr/bin/" + words[0], "/usr/local/bin/" + words[0]}, nil
	}
	return words[:1], nil
}

// machines maps values of GOARCH to ELF machines.
var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64,
	"loong64": elf.EM_LOONGARCH, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

func elfInterpreter(f io.ReaderAt) ([]string, error) {
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, fmt.Errorf("damaged ELF file: %w", err)
	}
	if e.Type != elf.ET_EXEC && e.Type != elf.ET_DYN {
		return nil, fmt.Errorf("ELF file of type %s, not a program", e.Type)
	}
	if m, ok := machines[runtime.GOARCH]; ok && e.Machine != m {
		return nil, fmt.Errorf("program for %s, but the machine is %s", e.Machine, m)
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return nil, fmt.Errorf("damaged ELF file: %w", err)
		}
		return []string{strings.TrimRight(string(name), "\x00")}, nil
	}
	return nil, nil
}
