package httpserver

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read is the tested part of a head.
type read struct {
	Method, Path, Query, Host string
	Minor                     int
	Fields                    [][2]string
	Length                    int64
	Close, Expects, Upgrade   bool
}

func (h *Head) read() read {
	r := read{
		Method: string(h.Method), Path: string(h.Path), Query: string(h.Query), Host: string(h.Host), Minor: h.Minor,
		Length: h.Length, Close: h.Close, Expects: h.Expects, Upgrade: h.Upgrade,
	}
	for _, f := range h.Fields {
		r.Fields = append(r.Fields, [2]string{string(f.Name), string(f.Value)})
	}
	return r
}

func TestHead(t *testing.T) {
	for name, test := range map[string]struct {
		head string
		want read
	}{
		"least": {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", read{Method: "GET", Path: "/", Host: "a", Minor: 1, Fields: [][2]string{{"Host", "a"}}}},
		"old":   {"GET / HTTP/1.0\r\n\r\n", read{Method: "GET", Path: "/", Close: true}},
		"old, kept": {
			"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
			read{Method: "GET", Path: "/", Fields: [][2]string{{"Connection", "Keep-Alive"}}},
		},
		"white space around values": {
			"GET /a%20b?c=d?e HTTP/1.1\r\nhost:\t a:80 \t\r\nX-Empty:\r\nX-Long: \x80 b\r\n\r\n",
			read{Method: "GET", Path: "/a%20b", Query: "c=d?e", Host: "a:80", Minor: 1, Fields: [][2]string{{"host", "a:80"}, {"X-Empty", ""}, {"X-Long", "\x80 b"}}},
		},
		"body": {
			"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\nExpect: 100-Continue\r\n\r\n",
			read{
				Method: "POST", Path: "/x", Host: "a", Minor: 1, Length: 1<<63 - 1, Expects: true,
				Fields: [][2]string{{"Host", "a"}, {"Content-Length", "9223372036854775807"}, {"Expect", "100-Continue"}},
			},
		},
		"chunked": {
			"PUT /x HTTP/1.1\r\nTRANSFER-encoding: Chunked\r\nHost: [::1]:8080\r\nConnection: close, upgrade\r\n\r\n",
			read{
				Method: "PUT", Path: "/x", Host: "[::1]:8080", Minor: 1, Length: -1, Close: true, Upgrade: true,
				Fields: [][2]string{{"TRANSFER-encoding", "Chunked"}, {"Host", "[::1]:8080"}, {"Connection", "close, upgrade"}},
			},
		},
		"absolute": {
			"GET HTTP://b:1?q HTTP/1.1\r\nHost: a\r\n\r\n",
			read{Method: "GET", Path: "/", Query: "q", Host: "b:1", Minor: 1, Fields: [][2]string{{"Host", "a"}}},
		},
		"asterisk":         {"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", read{Method: "OPTIONS", Path: "*", Minor: 1, Fields: [][2]string{{"Host", ""}}}},
		"empty line first": {"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", read{Method: "GET", Path: "/", Host: "a", Minor: 1, Fields: [][2]string{{"Host", "a"}}}},
		"nothing expected": {
			"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
			read{Method: "GET", Path: "/", Host: "a", Minor: 1, Fields: [][2]string{{"Host", "a"}, {"Expect", "100-continue"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h Head
			for n := range test.head { // for every split into pieces
				if got, err := h.Parse([]byte(test.head[:n]), &DefaultLimits); got != 0 || err != nil {
					t.Fatalf("of %d bytes %d, %v", n, got, err)
				}
			}
			n, err := h.Parse([]byte(test.head+"GET"), &DefaultLimits)
			if err != nil || n != len(test.head) {
				t.Fatalf("%d, %v, want %d", n, err, len(test.head))
			}
			if diff := cmp.Diff(test.want, h.read()); diff != "" {
				t.Errorf("head (-want +got):\n%s", diff)
			}
		})
	}
}

// Ambiguous or implausible heads are refused.
func TestHeadRefused(t *testing.T) {
	const ok = "GET / HTTP/1.1\r\nHost: a\r\n"
	for name, test := range map[string]struct {
		head   string
		status int
	}{
		"bare line feed":               {"GET / HTTP/1.1\nHost: a\n\n", 400},
		"bare line feed in fields":     {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400},
		"bare carriage return":         {ok + "X: a\rb\r\n\r\n", 400},
		"carriage return, then none":   {"\rGET / HTTP/1.1\r\n\r\n", 400},
		"two empty lines":              {"\r\n\r\n" + ok + "\r\n", 400},
		"length and coding":            {ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		"coding and length":            {ok + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
		"two lengths":                  {ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
		"two lengths, the same":        {ok + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
		"a list of lengths":            {ok + "Content-Length: 5, 5\r\n\r\n", 400},
		"signed length":                {ok + "Content-Length: +5\r\n\r\n", 400},
		"hexadecimal length":           {ok + "Content-Length: 0x5\r\n\r\n", 400},
		"length with space":            {ok + "Content-Length: 5 5\r\n\r\n", 400},
		"no length":                    {ok + "Content-Length:\r\n\r\n", 400},
		"length beyond 63 bits":        {ok + "Content-Length: 9223372036854775808\r\n\r\n", 400},
		"length of 20 digits":          {ok + "Content-Length: 00000000000000000005\r\n\r\n", 400},
		"other coding":                 {ok + "Transfer-Encoding: gzip\r\n\r\n", 501},
		"identity":                     {ok + "Transfer-Encoding: identity\r\n\r\n", 501},
		"two codings":                  {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
		"chunked twice":                {ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
		"chunked, disguised":           {ok + "Transfer-Encoding: \x0bchunked\r\n\r\n", 400},
		"chunked in quotes":            {ok + "Transfer-Encoding: \"chunked\"\r\n\r\n", 501},
		"chunked in 1.0":               {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		"space before the colon":       {ok + "Transfer-Encoding : chunked\r\n\r\n", 400},
		"folded line":                  {ok + "X: a\r\n b\r\n\r\n", 400},
		"folded line first":            {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
		"no name":                      {ok + ": a\r\n\r\n", 400},
		"no colon":                     {ok + "a\r\n\r\n", 400},
		"name with zero":               {ok + "a\x00b: c\r\n\r\n", 400},
		"value with zero":              {ok + "a: b\x00c\r\n\r\n", 400},
		"no Host":                      {"GET / HTTP/1.1\r\n\r\n", 400},
		"two Hosts":                    {ok + "host: a\r\n\r\n", 400},
		"Host with a path":             {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
		"Host with a user":             {"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
		"target with a space":          {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"target with a fragment":       {"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"target of nothing":            {"GET  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"target without a path":        {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"target of another kind":       {"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"target with a user":           {"GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"asterisk":                     {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"tunnel":                       {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
		"method":                       {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"no method":                    {" / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"no version":                   {"GET /\r\nHost: a\r\n\r\n", 400},
		"other version":                {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
		"version in lower case":        {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
		"space after the version":      {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
		"tabs":                         {"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", 400},
		"TLS":                          {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400},
		"something else expected":      {ok + "Expect: 200-ok\r\n\r\n", 417},
		"long target":                  {"GET /" + strings.Repeat("a", DefaultLimits.Target) + " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
		"long target, not ended":       {"GET /" + strings.Repeat("a", DefaultLimits.Target+100), 414},
		"many fields":                  {ok + strings.Repeat("a: b\r\n", DefaultLimits.Fields) + "\r\n", 431},
		"large field":                  {ok + "a: " + strings.Repeat("b", DefaultLimits.Head) + "\r\n\r\n", 431},
		"large field, not ended":       {ok + "a: " + strings.Repeat("b", DefaultLimits.Head), 431},
		"large head, of allowed lines": {ok + strings.Repeat("a: "+strings.Repeat("b", 1000)+"\r\n", 66) + "\r\n", 431},
	} {
		var h Head
		n, err := h.Parse([]byte(test.head), &DefaultLimits)
		var refused *RequestError
		if n != 0 || !errors.As(err, &refused) || refused.Status != test.status || refused.Reason == "" {
			t.Errorf("%s: %d, %v, want status %d", name, n, err, test.status)
		}
	}
}

func TestHeadAllocates(t *testing.T) {
	head := []byte("GET /function/hello?a=b HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: curl/8\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n")
	var h Head
	if n := testing.AllocsPerRun(100, func() {
		if n, err := h.Parse(head, &DefaultLimits); n != len(head) || err != nil {
			t.Fatal(n, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if string(h.Get("user-agent")) != "curl/8" || h.Get("x") != nil {
		t.Errorf("got %q, %q", h.Get("user-agent"), h.Get("x"))
	}
}

// FuzzHead: an accepted head means the same to net/http, which is more lenient.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST /a?b HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
		"PUT http://x:1/y?z HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close, upgrade\r\n\r\n0\r\n\r\n",
		"\r\nOPTIONS * HTTP/1.1\r\nHost: [::1]\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Head
		n, err := h.Parse(b, &DefaultLimits)
		if err != nil || n == 0 {
			if err != nil && n != 0 {
				t.Errorf("%d bytes and %v", n, err)
			}
			return
		}
		if n > len(b) || n > DefaultLimits.Head {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(b, []byte("\r\n")))))
		if err != nil {
			// net/http checks the content of URLs; here the handler checks.
			if strings.Contains(err.Error(), "parse ") || strings.Contains(err.Error(), "malformed Host") {
				return
			}
			t.Fatalf("net/http refuses %q: %v", b[:n], err)
		}
		got := h.read()
		if got.Method != r.Method || got.Host != r.Host || got.Minor != r.ProtoMinor || got.Length != r.ContentLength || got.Query != r.URL.RawQuery && !r.URL.ForceQuery {
			t.Errorf("%q:\n%+v, net/http: %s host %q, 1.%d, length %d, query %q", b[:n], got, r.Method, r.Host, r.ProtoMinor, r.ContentLength, r.URL.RawQuery)
		}
		if got.Close != r.Close {
			t.Errorf("%q: close %t, net/http %t", b[:n], got.Close, r.Close)
		}
	})
}

func BenchmarkHead(b *testing.B) {
	head := []byte("GET /function/hello?a=b HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: curl/8\r\nAccept: */*\r\nAccept-Encoding: gzip\r\nX-Request-Id: 0123456789\r\n\r\n")
	b.Run("httpserver", func(b *testing.B) {
		var h Head
		b.ReportAllocs()
		for b.Loop() {
			if _, err := h.Parse(head, &DefaultLimits); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("net/http", func(b *testing.B) {
		b.ReportAllocs()
		var src bytes.Reader
		r := bufio.NewReader(&src)
		for b.Loop() {
			src.Reset(head)
			r.Reset(&src)
			if _, err := http.ReadRequest(r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
