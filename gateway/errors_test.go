package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// TestErrorOf: each error of the engine has its status and code.
func TestErrorOf(t *testing.T) {
	for err, want := range map[error]string{
		engine.ErrOverloaded:       "503 overloaded",
		engine.ErrEngineOverloaded: "503 engine_overloaded",
		engine.ErrDegraded:         "503 degraded",
		engine.ErrClosed:           "503 stopping",
		engine.ErrTimeout:          "504 timeout",
		engine.ErrSlowBody:         "408 slow_body",
		engine.ErrEventTooLarge:    "431 header_too_large",
		engine.ErrImageGone:        "404 image_gone",
		&engine.UnknownError{}:     "404 not_found",
		&live.QuotaError{}:         "429 quota",
		&engine.FunctionError{}:    "500 function_error",
		&engine.CrashError{}:       "502 function_crashed",
		&engine.LoopError{}:        "508 loop",
		&engine.StepError{Failure: failure.StepMissing, Err: &engine.UnknownError{}}:    "502 step_missing",
		&engine.StepError{Failure: failure.Overloaded, Err: engine.ErrOverloaded}:       "503 overloaded",
		&engine.StepError{Failure: failure.FunctionError, Err: &engine.FunctionError{}}: "500 function_error",
		http.ErrAbortHandler:   "500 internal",
		errors.New("other"):    "500 internal",
		httpserver.ErrNoMemory: "503 busy",
	} {
		failed := errorOf(fmt.Errorf("invoke: %w", err))
		if got := fmt.Sprint(failed.Status, " ", failed.Code); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// TestCodes: for every code of the catalogue the gateway's answer has the status, the code, the
// wait and the next step of the catalogue. Codes of the control API become internal.
func TestCodes(t *testing.T) {
	var fails error
	r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) { return nil, fails }, nil)
	for _, want := range api.Failures() {
		fails = failure.New(want.Code, "the reason", "")
		if want.Code.OfControl() {
			want = api.FailureOf(failure.Internal)
		}
		a, body := r.ask("GET", "/function/f")
		var got api.ErrorBody
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%s: %q: %v", want.Code, body, err)
		}
		retry := ""
		if want.Retry > 0 {
			retry = strconv.Itoa(want.Retry)
		}
		if a.StatusCode != want.Status || got.Error.Code != want.Code || got.Error.Next != want.Next || a.Header.Get("Retry-After") != retry {
			t.Errorf("%v: %d, Retry-After %q, %s; want %+v", fails, a.StatusCode, a.Header.Get("Retry-After"), body, want)
		}
		if strings.Contains(body, "the reason") == (want.Code == failure.Internal) {
			t.Errorf("%v: %s", fails, body)
		}
	}
}
