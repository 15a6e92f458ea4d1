package httpserver

import (
	"bytes"
	"strings"
	"testing"
)

func FuzzParseRanges(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-5", "bytes=5-", "bytes=0-1,2-3,,-1", "bytes=9223372036854775807-", "bytes=-99999999999999999999", "BYTES=1-1", "bytes=", "=", "bytes=1-0"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, field string, size int64) {
		if size < 0 || size > 1<<55 {
			return
		}
		parts, ok := parseRanges(field, size)
		total := int64(0)
		for _, p := range parts {
			total += p.Length
			if !ok || p.First < 0 || p.Length < 1 || p.First+p.Length > size {
				t.Errorf("%q of %d: %+v, %v", field, size, parts, ok)
			}
		}
		if total > size || len(parts) > maxParts {
			t.Errorf("%q of %d: %d bytes in %d parts", field, size, total, len(parts))
		}
	})
}

func FuzzMatches(f *testing.F) {
	f.Add(`"a", W/"b"`, `"a"`)
	f.Add(`*`, ``)
	f.Add(`"`, `"`)
	f.Add(`W/`, `W/""`)
	f.Fuzz(func(t *testing.T, list, tag string) {
		if matches(list, tag, strongly) && !matches(list, tag, weakly) {
			t.Errorf("%q has %q strongly alone", list, tag)
		}
		given, rest, ok := cutTag(list)
		if ok && given+rest != list {
			t.Errorf("%q: %q %q", list, given, rest)
		}
		if bytes.ContainsAny([]byte(given), "\r\n ") {
			t.Errorf("%q: tag %q", list, given)
		}
	})
}

func FuzzAcceptedCoding(f *testing.F) {
	for _, s := range []string{"gzip, deflate;q=0.5, *;q=0", "zstd;q=1.000", ";;;", "gzip;q=", ",", "*"} {
		f.Add(s)
	}
	codings := []string{"zstd", "gzip"}
	f.Fuzz(func(t *testing.T, field string) {
		i := AcceptedCoding(field, codings)
		if i >= 0 && !bytes.Contains(bytes.ToLower([]byte(field)), []byte(codings[i])) && !strings.Contains(field, "*") {
			t.Errorf("%q: %s", field, codings[i])
		}
		if q := weight(field); q < 0 || q > 1000 {
			t.Errorf("%q: weight %d", field, q)
		}
	})
}
