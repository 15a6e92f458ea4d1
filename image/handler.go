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
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image/unpack"
	"github.com/fre-engine/fre/internal/freignore"
	"github.com/fre-engine/fre/template"
)

// checkHandler finds faults at build time that would otherwise appear at the first event: a missing
// module, or a program that cannot run in the base. It does not run the function.
func (c *codeTree) checkHandler(t *template.Template, rootfs string) error {
	at := strings.LastIndexByte(t.Handler, '.')
	switch {
	case t.Runtime == "native" && (t.Contract == template.ContractCGI || t.Contract == template.ContractLambda):
		return nil // a command line
	case t.Runtime == "native":
		return c.checkProgram(t, rootfs)
	case t.Runtime == "java" && (t.Contract == template.ContractLambda || t.Contract == template.ContractFramework):
		class, _, _ := strings.Cut(t.Handler, "::")
		return c.checkClass(t, class)
	case at < 0:
		return nil
	case t.Runtime == "python" && t.Packages.Of("pip").None(): // otherwise the module may be in a package
		return c.checkModule(t.Handler, strings.ReplaceAll(t.Handler[:at], ".", "/"), ".py", ".pyc", ".so")
	case t.Runtime == "node" && t.Packages.Of("npm").None():
		return c.checkModule(t.Handler, path.Clean(t.Handler[:at]), ".js", ".cjs", ".mjs", ".json", ".node")
	case t.Runtime == "php":
		return c.checkFile(t.Handler, path.Clean(t.Handler[:at])+".php")
	case t.Runtime == "ruby":
		file := t.Handler[:at]
		// A module's name may follow the file: main.App.handle.
		if at = strings.LastIndexByte(file, '.'); at > 0 && unicode.IsUpper([]rune(file[at+1:] + "x")[0]) {
			file = file[:at]
		}
		return c.checkFile(t.Handler, path.Clean(file)+".rb")
	case t.Runtime == "java":
		return c.checkClass(t, t.Handler[:at])
	}
	return nil
}

// checkClass requires the handler's class in the code or its jars, unless a package may have it.
// Each jar must be a valid zip archive.
func (c *codeTree) checkClass(t *template.Template, class string) error {
	class = strings.ReplaceAll(class, ".", "/") + ".class"
	_, found := c.entries[class]
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		dir := path.Dir(name)
		if path.Ext(name) != ".jar" || dir != "." && dir != "lib" || !c.entries[name].mode.IsRegular() {
			continue
		}
		names, err := c.jarNames(name)
		if err != nil {
			return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s in the code is not a valid jar (%s): build the jar again, or list the jar in %s", name, err, freignore.File)}
		}
		if slices.Contains(names, "BOOT-INF/classes/"+class) {
			return c.handlerError(t.Handler, "%s is a Spring Boot jar with the class below BOOT-INF: use the plain jar (.jar.original), and list dependencies in packages.maven", name)
		}
		found = found || slices.Contains(names, class)
	}
	if found || !t.Packages.Of("maven").None() {
		return nil
	}
	return c.handlerError(t.Handler, "no %s in the code or jars: add the class, or name an existing class (found: %s)", class, c.topNames())
}

const maxJarFiles = 100_000

// jarNames returns the files in a jar of the code.
func (c *codeTree) jarNames(name string) ([]string, error) {
	f, err := c.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := unpack.Zip(f, c.entries[name].size, maxJarFiles)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(z.File))
	for i, e := range z.File {
		names[i] = e.Name
	}
	return names, nil
}

func (c *codeTree) checkFile(handler, name string) error {
	if _, ok := c.entries[name]; ok {
		return nil
	}
	return c.handlerError(handler, "no %s in the code: add the file, or name an existing file (found: %s)", name, c.topNames())
}

// checkModule requires a directory with the module's name, or a file with an extension that the
// language loads.
func (c *codeTree) checkModule(handler, module string, extensions ...string) error {
	for name := range c.entries {
		if name == module || strings.HasPrefix(name, module+".") && slices.Contains(extensions, path.Ext(name)) {
			return nil
		}
	}
	return c.handlerError(handler, "no %s in the code: add the module, or name an existing module (found: %s)", module+extensions[0], c.topNames())
}

func (*codeTree) handlerError(handler, format string, args ...any) error {
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
	fail := func(format string, args ...any) error { return c.handlerError(t.Handler, format, args...) }
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

// executable requires an executable file at name; symbolic links stay inside root (openat2(2),
// RESOLVE_IN_ROOT). Errors: an errno.
func executable(root int, name string) error {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return unix.EACCES
	}
	return nil
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

// machines maps Go's architectures to ELF machines.
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
