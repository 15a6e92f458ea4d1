package adapter

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fre-engine/fre/function/channel"
)

// FuzzHTTPAnswer: A handler's return value becomes a valid answer or is refused.
func FuzzHTTPAnswer(f *testing.F) {
	f.Add([]byte(`{"statusCode":200,"headers":{"a":"b"},"body":"x"}`))
	f.Add([]byte(`{"statusCode":200,"multiValueHeaders":{"a":["b"]},"isBase64Encoded":true,"body":"eA=="}`))
	f.Add([]byte(`"text"`))
	f.Fuzz(func(t *testing.T, returned []byte) {
		a := &channel.Answer{Status: 200}
		if httpAnswer(a, returned) == nil {
			checkAnswer(t, returned, a)
		}
	})
}

func FuzzPrelude(f *testing.F) {
	f.Add([]byte(`{"statusCode":201,"headers":{"a":"b"},"cookies":["c=d"]}` + "\x00\x00\x00\x00\x00\x00\x00\x00body"))
	f.Add([]byte("{}\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		b := &streamed{r: &http.Request{Body: io.NopCloser(bytes.NewReader(stream))}, done: make(chan struct{})}
		a := &channel.Answer{Status: 200, Body: b}
		if b.prelude(a) != nil {
			return
		}
		checkAnswer(t, stream, a)
		if rest, err := io.ReadAll(a.Body); err != nil || !bytes.HasSuffix(stream, rest) {
			t.Errorf("%q: the body is %q, %v", stream, rest, err)
		}
	})
}

func FuzzCGIHead(f *testing.F) {
	f.Add([]byte("Content-Type: text/plain\n\nbody"))
	f.Add([]byte("Status: 404 Not Found\r\nX: \r\n\r\n"))
	f.Add([]byte("Location: /x\n\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		s := &script{out: bufio.NewReaderSize(bytes.NewReader(out), lineSize)}
		a := &channel.Answer{Body: s}
		if s.head(a) != nil {
			return
		}
		checkAnswer(t, out, a)
		if rest, err := io.ReadAll(s); err != nil || !bytes.HasSuffix(out, rest) {
			t.Errorf("%q: the body is %q, %v", out, rest, err)
		}
	})
}

// checkAnswer reports the parts of an answer that the engine would refuse.
func checkAnswer(t *testing.T, of []byte, a *channel.Answer) {
	t.Helper()
	if a.Status < 200 || a.Status > 599 || len(a.Headers) > channel.MaxHeaders || a.Body == nil {
		t.Errorf("%q: %+v", of, a)
	}
	for _, h := range a.Headers {
		if !token(h[0]) || strings.ContainsFunc(h[1], control) {
			t.Errorf("%q: header %q", of, h)
		}
	}
}
