package httpserver

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// dechunk reads a whole body that arrives in pieces of at most size bytes; rest follows the body.
// It returns io.ErrUnexpectedEOF if the body does not end.
func dechunk(b []byte, size int) (body, rest []byte, err error) {
	var c Chunks
	body = []byte{}
	for have := 0; ; {
		used, data, err := c.Next(b[:have])
		if err != nil {
			return nil, nil, err
		}
		body = append(body, data...)
		b = b[used:]
		have -= used
		switch {
		case c.Done():
			return body, b, nil
		case used > 0:
		case have == len(b):
			return nil, nil, io.ErrUnexpectedEOF
		default:
			have = min(have+size, len(b))
		}
	}
}

func TestChunks(t *testing.T) {
	for in, want := range map[string]string{
		"0\r\n\r\n":             "",
		"3\r\nabc\r\n0\r\n\r\n": "abc",
		"3\r\nabc\r\n00A\r\n0123456789\r\n0\r\n\r\n":      "abc0123456789",
		"2;x=\"y\"\r\n\r\n\r\n1 ;z\r\n-\r\n0;end\r\n\r\n": "\r\n-",
		"1\r\na\r\n0\r\nX-Trailer: b\r\nY:\r\n\r\n":       "a",
	} {
		for _, size := range []int{1, 2, 7, 1 << 20} {
			body, rest, err := dechunk([]byte(in+"GET"), size)
			if err != nil || string(body) != want || string(rest) != "GET" {
				t.Errorf("%q in pieces of %d: %q, then %q, %v", in, size, body, rest, err)
			}
		}
	}
}

func TestChunksRefused(t *testing.T) {
	for name, in := range map[string]string{
		"no size":                "\r\n",
		"minus":                  "-1\r\n",
		"prefix":                 "0x1\r\na\r\n",
		"space first":            " 1\r\na\r\n",
		"space after":            "1 \r\na\r\n",
		"too large":              "1000000000000000\r\n",
		"more digits":            strings.Repeat("0", 20) + "1\r\na\r\n",
		"bare line feed":         "1\na\n0\n\n",
		"bare line feed at last": "1\r\na\r\n0\r\n\n",
		"longer than said":       "1\r\nab\r\n",
		"no line end":            "1\r\na\n\r\n",
		"extension with CR":      "1;a\rb\r\na\r\n",
		"long extension":         "1;" + strings.Repeat("a", 300) + "\r\na\r\n",
		"endless size":           strings.Repeat("0", maxTrailer),
		"endless trailer":        "0\r\n" + strings.Repeat("a: b\r\n", maxTrailer/6+1) + "\r\n",
		"endless trailer line":   "0\r\na: " + strings.Repeat("b", maxTrailer),
		"trailer of nothing":     "0\r\nabc\r\n\r\n",
		"folded trailer":         "0\r\na: b\r\n c\r\n\r\n",
	} {
		_, _, err := dechunk([]byte(in), 1<<20)
		var refused *RequestError
		if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, in := range []string{"", "3", "3\r\n", "3\r\nab", "3\r\nabc", "3\r\nabc\r\n", "0\r\n", "0\r\na: b\r\n"} {
		if _, _, err := dechunk([]byte(in), 1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// FuzzChunks: an accepted body gives the same body and the same rest in net/http.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\nrest", "1;x\r\na\r\n0\r\nX: y\r\n\r\n", "A\r\n0123456789\r\n0\r\n\r\n"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		body, rest, err := dechunk(b, max(1, size))
		whole, _, wholeErr := dechunk(b, len(b)+1)
		if (err == nil) != (wholeErr == nil) || err == nil && !bytes.Equal(body, whole) {
			t.Fatalf("in pieces %q, %v, at once %q, %v", body, err, whole, wholeErr)
		}
		if err != nil {
			return
		}
		src := bufio.NewReader(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(b)))
		r, err := http.ReadRequest(src)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := io.ReadAll(r.Body)
		if err != nil {
			// net/http limits the bytes of chunk heads relative to the data, and refuses malformed
			// trailers.
			if strings.Contains(err.Error(), "too much overhead") || strings.Contains(err.Error(), "malformed MIME") || strings.Contains(err.Error(), "too long") {
				return
			}
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		left, err := io.ReadAll(src)
		if err != nil || !bytes.Equal(theirs, body) || !bytes.Equal(left, rest) {
			t.Errorf("%q: %q then %q, net/http: %q then %q, %v", b, body, rest, theirs, left, err)
		}
	})
}
