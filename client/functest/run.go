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

// Suite is what came of the cases of one template; in JSON the report of
// fre test --report json=FILE.
type Suite struct {
	Template string   `json:"template"` // its directory
	Function string   `json:"function"` // under which it ran
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Tests    []Result `json:"tests"`
}

// Result is what came of one case.
type Result struct {
	Name        string   `json:"name"`
	Passed      bool     `json:"passed"`
	Millis      float64  `json:"duration_ms"`          // until the answer was there
	Status      int      `json:"status,omitempty"`     // of the answer
	Start       string   `json:"start,omitempty"`      // where the instance came from
	Invocation  string   `json:"invocation,omitempty"` // its name in the logs
	Differences []string `json:"differences,omitempty"`
	Logs        []string `json:"logs,omitempty"` // of the event, where it failed

	Answer [sha256.Size]byte `json:"-"` // of status and body, the function's name in it replaced by [Placeholder]
}

// Run has the function answer one case after the other and calls report with each.
// An error is that there is no answer to be had.
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

// canonical is one text for all that are the same JSON: an object's members come in
// an order of their own in each process of some languages (Java's Map.of). What is
// no JSON is as it stands.
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

// Changed names the cases that were answered twice in the same way, and in another
// way after: what varies by itself, such as the time, is not among them. The suites
// are of the same cases.
func Changed(once, again, after *Suite) []string {
	var out []string
	for i, r := range after.Tests {
		if before := once.Tests[i].Answer; before == again.Tests[i].Answer && before != r.Answer {
			out = append(out, r.Name)
		}
	}
	return out
}

// answer reads an answer whole. One that says that the function failed is one, too.
func answer(ctx context.Context, c *client.Client, function string, e *Event) (*Answer, error) {
	resp, err := c.Invoke(ctx, function, e.Client())
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
	if err != nil && ctx.Err() == nil { // the function broke it off
		body, err := json.Marshal(api.ErrorBody{Error: &api.Error{Code: api.CodeCrash, Message: "function broke off its answer: " + err.Error()}})
		return &Answer{Status: 502, Header: resp.Header, Body: body}, err
	}
	return a, err
}

// logs are the lines of one invocation, and those of nobody's since it began; all
// where it has no name.
func logs(ctx context.Context, c *client.Client, function, invocation string, since time.Time) (lines []string, err error) {
	err = c.Logs(ctx, function, client.LogOptions{Tail: -1, Since: since}, func(l api.LogLine) error {
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

// WriteJUnit writes the report that build servers read: JUnit's XML, as Ant's
// JUnit task made it known. Characters that XML cannot hold are replaced.
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
