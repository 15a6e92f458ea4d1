package functest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// Suite is the result of a template's cases, and the JSON report of fre test --report json=FILE.
type Suite struct {
	Template string   `json:"template"` // the template's directory
	Function string   `json:"function"` // name of the deployed function
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Tests    []Result `json:"tests"`
}

// Result is the result of one case.
type Result struct {
	Name        string   `json:"name"`
	Passed      bool     `json:"passed"`
	Millis      float64  `json:"duration_ms"`          // time until the answer had arrived
	Status      int      `json:"status,omitempty"`     // status of the answer
	Start       string   `json:"start,omitempty"`      // source of the instance
	Invocation  string   `json:"invocation,omitempty"` // id of the invocation in the logs
	Differences []string `json:"differences,omitempty"`
	Logs        []string `json:"logs,omitempty"` // log lines of a failed event

	Answer [sha256.Size]byte `json:"-"` // digest of status and body, with the function's name replaced by [Placeholder]
}

// Run sends the cases to the function one after another and calls report with each result. An
// error means that the engine gave no answer.
func Run(ctx context.Context, c *client.Client, function string, cases []Case, report func(Result)) (*Suite, error) {
	s := &Suite{Function: function, Tests: []Result{}}
	for i := range cases {
		begin := time.Now()
		r, err := run(ctx, c, function, &cases[i])
		if err != nil {
			return s, fmt.Errorf("test %s: %w", cases[i].Name, err)
		}
		if r.Passed {
			s.Passed++
		} else {
			s.Failed++
			if r.Logs, err = logs(ctx, c, function, r.Invocation, begin); err != nil {
				return s, err
			}
		}
		s.Tests = append(s.Tests, r)
		report(r)
	}
	return s, nil
}

func run(ctx context.Context, c *client.Client, function string, t *Case) (Result, error) {
	begin := time.Now()
	a, err := answer(ctx, c, function, &t.Event)
	if err != nil {
		return Result{}, err
	}
	a.Took = time.Since(begin)
	wrong := t.Expect.Check(a)
	return Result{
		Name: t.Name, Passed: wrong == nil, Millis: float64(a.Took.Microseconds()) / 1000, Status: a.Status,
		Start: a.Header.Get(api.StartKindHeader), Invocation: a.Header.Get(api.InvocationHeader), Differences: wrong,
		Answer: sha256.Sum256(fmt.Appendf(nil, "%d\n%s", a.Status, canonical(bytes.ReplaceAll(a.Body, []byte(told(function)), []byte(Placeholder))))),
	}, nil
}

// canonical returns one text for all equal JSON values, because some languages order an object's
// members differently in each process (Java's Map.of). canonical returns a body that is not JSON
// unchanged.
func canonical(body []byte) []byte {
	v, err := value(body)
	if err != nil {
		return body
	}
	text, err := json.Marshal(v)
	if err != nil {
		return body
	}
	return text
}

// Changed returns the names of the cases whose answer was equal in once and again and differs in
// after. Answers that vary by themselves, such as the time, are left out. All three suites must
// have the same cases.
func Changed(once, again, after *Suite) []string {
	var out []string
	for i, r := range after.Tests {
		if before := once.Tests[i].Answer; before == again.Tests[i].Answer && before != r.Answer {
			out = append(out, r.Name)
		}
	}
	return out
}

// answer sends an event and reads the whole answer. A failure of the function is an answer too.
func answer(ctx context.Context, c *client.Client, function string, e *Event) (*Answer, error) {
	resp, err := c.Functions().Invoke(ctx, function, e.Client())
	var failed *api.Error
	if errors.As(err, &failed) && failed.Code != api.CodeNotFound && failed.Code != api.CodeClosed {
		body, err := json.Marshal(api.ErrorBody{Error: failed})
		return &Answer{Status: failed.Status, Body: body}, err
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, Header: resp.Header}
	a.Body, err = io.ReadAll(resp.Body)
	if err != nil && ctx.Err() == nil { // the function aborted the answer
		body, err := json.Marshal(api.ErrorBody{Error: &api.Error{Code: api.CodeCrash, Message: "function broke off its answer: " + err.Error()}})
		return &Answer{Status: 502, Header: resp.Header, Body: body}, err
	}
	return a, err
}

// logs returns the log lines of one invocation, and the lines without an invocation since then.
// For an empty invocation, logs returns all lines.
func logs(ctx context.Context, c *client.Client, function, invocation string, since time.Time) (lines []string, err error) {
	err = c.Functions().Logs(ctx, function, client.LogOptions{Tail: -1, Since: since}, func(l api.LogLine) error {
		if invocation == "" || l.Invocation == "" || l.Invocation == invocation {
			lines = append(lines, l.String())
		}
		return nil
	})
	return lines, err
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure,omitempty"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes a JUnit XML report for build servers, in the format of Ant's JUnit task.
// WriteJUnit replaces characters that XML cannot hold.
func (s *Suite) WriteJUnit(w io.Writer) error {
	seconds := func(ms float64) string { return fmt.Sprintf("%.3f", ms/1000) }
	out := junitSuite{Name: s.Template, Tests: len(s.Tests), Failures: s.Failed}
	total := 0.0
	for _, t := range s.Tests {
		total += t.Millis
		c := junitCase{Name: t.Name, Class: s.Template, Time: seconds(t.Millis), Out: strings.Join(t.Logs, "\n")}
		if !t.Passed {
			c.Failure = &junitFailure{Message: first(t.Differences), Text: strings.Join(t.Differences, "\n")}
		}
		out.Cases = append(out.Cases, c)
	}
	out.Time = seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func first(differences []string) string {
	if len(differences) == 0 {
		return ""
	}
	line, _, _ := strings.Cut(differences[0], "\n")
	return line
}

// WriteJSON writes the report as one JSON value.
func (s *Suite) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}
