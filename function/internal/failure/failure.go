// Package failure says what the engine is told when a function written in Go
// fails: of what type the error or panic was, its message, and the user's part of
// the stack.
package failure

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/channel"
)

// Catch runs f and returns what it panicked with, and where.
func Catch(f func()) (failure *channel.Failure) {
	defer func() {
		if v := recover(); v != nil {
			failure = panicked(v)
		}
	}()
	f()
	return nil
}

// panicked describes the panic of value v. It is called by the deferred function
// that recovered it, while the stack is still that of the panic.
func panicked(v any) *channel.Failure {
	f := &channel.Failure{Type: "panic", Message: fmt.Sprint(v), Stack: stack()}
	var passed *channel.Failure
	switch err, isError := v.(error); {
	case isError && errors.As(err, &passed): // one that was caught in another goroutine
		return passed
	case isError:
		f.Type = typeOf(err)
	}
	return f
}

// Of says what the engine is told of an error.
func Of(err error) *channel.Failure {
	var f *channel.Failure
	if errors.As(err, &f) {
		return f
	}
	return &channel.Failure{Type: typeOf(err), Message: err.Error()}
}

// typeOf names an error's type. Those that only carry a text or wrap another,
// as fmt.Errorf and errors.New make them, say nothing: the first one in the chain
// that does is named, else it is an "error".
func typeOf(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		t := reflect.TypeOf(err)
		if t.Kind() == reflect.Pointer && (t.Elem().PkgPath() == "errors" || t.Elem().PkgPath() == "fmt") {
			continue
		}
		return t.String()
	}
	return "error"
}

// stack is the user's part of the goroutine's stack, innermost call first:
//
//	main.greet
//		/function/main.go:12
//
// Frames of Go's runtime and of what stands between the channel and the handler
// are left out.
func stack() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var b strings.Builder
	for {
		f, more := frames.Next()
		if f.Function != "" && !ours(f.Function) {
			_, _ = fmt.Fprintf(&b, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}

// library is the import path of package function.
var library = strings.TrimSuffix(reflect.TypeFor[none]().PkgPath(), "/internal/failure")

type none struct{}

func ours(function string) bool {
	return slices.ContainsFunc([]string{"runtime.", "iter.", "net/http.", library + ".", library + "/", path.Dir(library) + "/channel."}, func(prefix string) bool {
		return strings.HasPrefix(function, prefix)
	})
}

// Report is what stderr is told of a failure.
func Report(f *channel.Failure) string {
	if f.Stack == "" {
		return f.Error()
	}
	return f.Error() + "\n" + strings.TrimSuffix(f.Stack, "\n")
}
