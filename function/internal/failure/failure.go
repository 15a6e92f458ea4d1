// Package failure describes failures of Go functions for the engine: the type of the error or
// panic, its message, and the user's part of the stack.
package failure

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// Catch runs f. If f panics, Catch returns the panic as a failure with its stack.
func Catch(f func()) (failure *channel.Failure) {
	defer func() {
		if v := recover(); v != nil {
			failure = panicked(v)
		}
	}()
	f()
	return nil
}

// panicked describes the panic of value v. The deferred function that recovered the panic must
// call it, while the stack is still the panic's.
func panicked(v any) *channel.Failure {
	f := &channel.Failure{Type: "panic", Message: fmt.Sprint(v), Stack: stack()}
	var passed *channel.Failure
	switch err, isError := v.(error); {
	case isError && errors.As(err, &passed): // a failure caught in another goroutine
		return passed
	case isError:
		f.Type = typeOf(err)
	}
	return f
}

// Of converts an error to a failure.
func Of(err error) *channel.Failure {
	var f *channel.Failure
	if errors.As(err, &f) {
		return f
	}
	return &channel.Failure{Type: typeOf(err), Message: err.Error()}
}

// typeOf returns the type name of the first error in the chain that is more than text: types of
// fmt.Errorf and errors.New are skipped. Without such an error it returns "error".
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

// stack returns the user's part of the goroutine's stack, innermost call first:
//
//	main.greet
//		/function/main.go:12
//
// It omits frames of Go's runtime and of the code between channel and handler.
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

// Report formats a failure for stderr.
func Report(f *channel.Failure) string {
	if f.Stack == "" {
		return f.Error()
	}
	return f.Error() + "\n" + strings.TrimSuffix(f.Stack, "\n")
}
