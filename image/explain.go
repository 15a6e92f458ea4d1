package image

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Speaking is a Runtime whose language reports failures in words of its own.
type Speaking interface {
	Runtime

	// Messages returns how the language reports failures that a template's key can mend.
	Messages() Messages
}

// Messages are a language's messages. The regular expressions have the syntax of package regexp; ""
// for none.
type Messages struct {
	Missing string // a missing module; the only group is the name
	Threads string // a thread or process that cannot start
	Memory  string // too little memory

	// ModulePrefix begins the names of Debian packages that hold one module each.
	ModulePrefix string

	// Aborted returns the limit that may have ended a program with these arguments by SIGABRT; ""
	// if none is known. nil: none.
	Aborted func(args []string) string
}

// Explainer finds the cause of a function's failure in the failure's text. Make it with
// [NewExplainer]. It is immutable and safe for concurrent use.
type Explainer struct {
	missing  *lazyregexp.Regexp
	prefixes []string // of Debian packages with one module
	limits   []limit
	aborted  []func(args []string) string
}

// limit is a limit of the sandbox.
type limit struct {
	says *lazyregexp.Regexp // messages about the limit
	key  string             // raises the limit, in the template
	text func(*template.Resources) string
}

// NewExplainer returns the Explainer for the messages of the runtimes' languages, of the loader and
// of the C library.
func NewExplainer(runtimes []Runtime) *Explainer {
	x := &Explainer{}
	var missing []string
	threads := []string{`[Ff]ork: (?:retry: )?Resource temporarily unavailable`}
	memory := []string{`Cannot allocate memory`, `\bENOMEM\b`}
	for _, r := range runtimes {
		speaking, ok := r.(Speaking)
		if !ok {
			continue
		}
		m := speaking.Messages()
		missing, threads, memory = append(missing, m.Missing), append(threads, m.Threads), append(memory, m.Memory)
		if m.ModulePrefix != "" {
			x.prefixes = append(x.prefixes, m.ModulePrefix)
		}
		if m.Aborted != nil {
			x.aborted = append(x.aborted, m.Aborted)
		}
	}
	missing = append(missing,
		`([\w+.-]+\.so[\w.]*): cannot open shared object file`,
		`(?:No such file or directory|ENOENT|FileNotFoundException|NoSuchFileException|Can't load library)[^/'"\n]{0,60}['"]?(/?[\w@+./-]+)`,
		`(/[\w@+./-]+) \(No such file or directory\)`)
	x.missing = anyOf(missing)
	// The first match counts: some languages report a thread that cannot start as too little memory.
	x.limits = []limit{
		{anyOf([]string{`No space left on device`, `\bENOSPC\b`}), "resources.tmp", func(r *template.Resources) string {
			return "/tmp of the sandbox holds at most " + template.FormatBytes(r.TmpBytes)
		}},
		{anyOf([]string{`Too many open files`, `\bEMFILE\b`}), "resources.files", func(r *template.Resources) string {
			return fmt.Sprintf("a process of the sandbox has at most %d open files", r.Files)
		}},
		{anyOf(threads), "resources.pids", func(r *template.Resources) string {
			return fmt.Sprintf("the sandbox has at most %d processes and threads", r.Pids)
		}},
		{anyOf(memory), "resources.memory", memoryLimit},
	}
	return x
}

// anyOf matches what one of the expressions matches; "" matches nothing.
func anyOf(expressions []string) *lazyregexp.Regexp {
	expressions = slices.DeleteFunc(expressions, func(s string) bool { return s == "" })
	return lazyregexp.New(strings.Join(expressions, "|"))
}

func memoryLimit(r *template.Resources) string {
	return "the sandbox has at most " + template.FormatBytes(r.MemoryBytes) + " of memory, /tmp included"
}

// maxFailureText bounds the text that an Explainer reads, in bytes.
const maxFailureText = 16 << 10

// Failure returns the cause of the failure of a function with an image of c, and the template's key
// that mends it; "" for an unknown cause. The limits count only in the message, a file or module that
// slimming left out also in the stack.
func (x *Explainer) Failure(c *Config, message, stack string) string {
	return cmp.Or(x.leftOut(c.LeftOut, message+"\n"+stack), x.limit(c, message))
}

// Memory explains that the kernel killed a function at its memory limit.
func (*Explainer) Memory(c *Config) string {
	return memoryLimit(&c.Resources) + ": raise resources.memory in fret.yaml"
}

// Abort returns the limit that may have ended the program by SIGABRT; "" if none is known.
func (x *Explainer) Abort(c *Config) string {
	for _, aborted := range x.aborted {
		if why := aborted(c.Args); why != "" {
			return why
		}
	}
	return ""
}

// limit returns the limit that a failure's text is about, and the template's key that raises the
// limit; "" if the text is about no limit.
func (x *Explainer) limit(c *Config, text string) string {
	text = text[:min(len(text), maxFailureText)]
	for i := range x.limits {
		if l := &x.limits[i]; l.says.MatchString(text) {
			return fmt.Sprintf("%s: raise %s in fret.yaml", l.text(&c.Resources), l.key)
		}
	}
	return ""
}

// leftOut searches a failure's text for a missing file or module that slimming left out, and
// returns the template's key that restores it; "" without a match. l may be nil.
func (x *Explainer) leftOut(l *LeftOut, text string) string {
	if l == nil {
		return ""
	}
	wanted := ""
	for _, m := range x.missing.FindAllStringSubmatch(text[:min(len(text), maxFailureText)], -1) {
		wanted = m[slices.IndexFunc(m[1:], func(s string) bool { return s != "" })+1]
		if wanted == "" {
			continue
		}
		if found := x.restore(l, wanted); found != "" {
			return found
		}
	}
	if wanted != "" && len(l.Unopened) > 0 {
		return fmt.Sprintf("the image was slimmed to the files opened by tests: if %s was left out (fre image inspect --left-out), add the file to keep in fret.yaml and slim again, or deploy the whole image", wanted)
	}
	return ""
}

// restore returns the template's key that restores a file or module; "" if slimming did not leave it
// out.
func (x *Explainer) restore(l *LeftOut, wanted string) string {
	for _, f := range l.Files {
		if f.holds(wanted) {
			return fmt.Sprintf("%s was left out of the base with %s: write keep: [%q] or slim: false in fret.yaml", wanted, f.Pattern, f.Pattern)
		}
	}
	top := topName(wanted)
	name := l.Apart[top]
	if i := slices.IndexFunc(l.Packages, func(p string) bool {
		return p == top || slices.Contains(x.prefixes, strings.TrimSuffix(p, top))
	}); name == "" && i >= 0 {
		name = l.Packages[i]
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s is in the Debian package %s, missing in the base: write packages: {deb: [%s]} in fret.yaml", wanted, name, name)
}

// holds reports whether the pattern left out a file, class or module that a program asked for.
func (f *LeftOutFiles) holds(wanted string) bool {
	if p, ok := strings.CutPrefix(wanted, "/"); ok {
		keeps, err := debian.Keep([]string{f.Pattern})
		return err == nil && !keeps(p)
	}
	dotted := strings.ReplaceAll(wanted, "/", ".")
	for _, name := range f.Names {
		if strings.Contains(name, ".") && strings.HasPrefix(dotted, name+".") { // package of a class
			return true
		}
	}
	return slices.Contains(f.Names, topName(wanted))
}

// topName returns the outermost module: "irb" of "irb/cmd", "xml" of "xml.dom".
func topName(wanted string) string {
	if strings.Contains(wanted, ".so") { // a library
		return askedName(wanted)
	}
	top, _, _ := strings.Cut(wanted, "/")
	top, _, _ = strings.Cut(top, ".")
	return top
}
