package web

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/fre-engine/fre/function"
)

// Knative returns a function's handler for an instance of a Knative function. The instance has a
// method Handle(http.ResponseWriter, *http.Request). It may have Start(context.Context,
// map[string]string) error, called with the environment, and Alive and Ready(context.Context)
// (bool, error), called for /health/liveness and /health/readiness. Knative panics if Handle is
// missing or Start fails.
func Knative(instance any) function.Handler {
	h, ok := instance.(interface {
		Handle(http.ResponseWriter, *http.Request)
	})
	if !ok {
		panic(fmt.Errorf("%T has no method Handle(http.ResponseWriter, *http.Request)", instance))
	}
	if s, ok := instance.(interface {
		Start(context.Context, map[string]string) error
	}); ok {
		environment := map[string]string{}
		for _, v := range os.Environ() {
			name, value, _ := strings.Cut(v, "=")
			environment[name] = value
		}
		if err := s.Start(context.Background(), environment); err != nil {
			panic(err)
		}
	}
	alive, ready := func(context.Context) (bool, error) { return true, nil }, func(context.Context) (bool, error) { return true, nil }
	if a, ok := instance.(interface {
		Alive(context.Context) (bool, error)
	}); ok {
		alive = a.Alive
	}
	if r, ok := instance.(interface {
		Ready(context.Context) (bool, error)
	}); ok {
		ready = r.Ready
	}
	return Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health/liveness":
			health(w, r, alive)
		case "/health/readiness":
			health(w, r, ready)
		default:
			h.Handle(w, r)
		}
	}))
}

func health(w http.ResponseWriter, r *http.Request, well func(context.Context) (bool, error)) {
	ok, err := well(r.Context())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil || !ok {
		w.WriteHeader(http.StatusInternalServerError)
	}
	if err != nil {
		_, _ = fmt.Fprintln(w, err)
	}
}

// KnativeContext is Knative for a function Handle(context.Context, http.ResponseWriter,
// *http.Request), Knative's older form.
func KnativeContext(handle func(context.Context, http.ResponseWriter, *http.Request)) function.Handler {
	return Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(r.Context(), w, r) }))
}
