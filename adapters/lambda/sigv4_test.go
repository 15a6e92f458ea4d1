package lambda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// vector is GET Vanilla Query Order of AWS's own suite (aws-sig-v4-test-suite,
// get-vanilla-query-order-key-case), with the service name "service".
const (
	vectorSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	vectorDate   = "20150830T123600Z"
)

// TestVector: the signature of AWS's suite is valid.
func TestVector(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/?Param2=value2&Param1=value1", http.NoBody)
	r.Host = "example.amazonaws.com"
	r.Header.Set("X-Amz-Date", vectorDate)
	s, err := parseAuthorization("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500")
	if err != nil {
		t.Fatal(err)
	}
	s.date = vectorDate
	text, err := s.text(r, sha256.Sum256(nil))
	if err != nil {
		t.Fatal(err)
	}
	if !s.verify([]byte(vectorSecret), text) {
		t.Errorf("the suite's signature does not hold; string to sign:\n%s", text)
	}
	if s.verify([]byte(vectorSecret+"x"), text) {
		t.Error("another secret's signature holds")
	}
}

// sign makes a request's Authorization field with the verifying code. TestVector and boto3 check
// this code independently.
func sign(t *testing.T, r *http.Request, key, secret string, headers []string, body []byte) {
	t.Helper()
	day := r.Header.Get("X-Amz-Date")[:8]
	s := &signature{key: key, date: r.Header.Get("X-Amz-Date"), scope: day + "/us-east-1/lambda/aws4_request", headers: headers}
	text, err := s.text(r, sha256.Sum256(body))
	if err != nil {
		t.Fatal(err)
	}
	sum := []byte("AWS4" + secret)
	for part := range strings.SplitSeq(s.scope, "/") {
		sum = mac(sum, part)
	}
	r.Header.Set("Authorization", algorithm+" Credential="+key+"/"+s.scope+", SignedHeaders="+strings.Join(headers, ";")+", Signature="+hex.EncodeToString(mac(sum, string(text))))
}

// TestSignature: any change of a signed request makes the signature invalid.
func TestSignature(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	const secret = "secret"
	for name, change := range map[string]struct {
		edit  func(r *http.Request, body *[]byte)
		wrong string // "": valid
	}{
		"nothing":            {func(*http.Request, *[]byte) {}, ""},
		"method":             {func(r *http.Request, _ *[]byte) { r.Method = http.MethodPut }, "signature"},
		"path":               {func(r *http.Request, _ *[]byte) { r.RequestURI = "/a%2fb?x=1" }, "signature"},
		"query":              {func(r *http.Request, _ *[]byte) { r.RequestURI = "/a%2Fb?x=2" }, "signature"},
		"host":               {func(r *http.Request, _ *[]byte) { r.Host = "other" }, "signature"},
		"body":               {func(_ *http.Request, body *[]byte) { *body = []byte("{} ") }, "signature"},
		"header":             {func(r *http.Request, _ *[]byte) { r.Header.Set("X-Amz-Invocation-Type", "Event") }, "is not signed"},
		"hash of the body":   {func(r *http.Request, _ *[]byte) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") }, "not signed"},
		"two fields":         {func(r *http.Request, _ *[]byte) { r.Header.Add("Authorization", "Bearer x") }, "several Authorization"},
		"a session":          {func(r *http.Request, _ *[]byte) { r.Header.Set("X-Amz-Security-Token", "x") }, "token"},
		"no date":            {func(r *http.Request, _ *[]byte) { r.Header.Del("X-Amz-Date") }, "not a time"},
		"a later date":       {func(r *http.Request, _ *[]byte) { r.Header.Set("X-Amz-Date", "20261124T120001Z") }, "signature"},
		"another day":        {func(r *http.Request, _ *[]byte) { r.Header.Set("X-Amz-Date", "20261125T000000Z") }, "scoped"},
		"nothing signed":     {func(r *http.Request, _ *[]byte) { r.Header.Del("Authorization") }, "Missing"},
		"five minutes later": {func(r *http.Request, _ *[]byte) { now = now.Add(maxSkew) }, ""},
		"and a second":       {func(r *http.Request, _ *[]byte) { now = now.Add(maxSkew + time.Second) }, "expired"},
		"a fast clock":       {func(r *http.Request, _ *[]byte) { now = now.Add(-maxSkew - time.Second) }, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
			body := []byte("{}")
			r := httptest.NewRequest(http.MethodPost, "/a%2Fb?x=1", bytes.NewReader(body))
			r.Header.Set("X-Amz-Date", now.Format(dateTime))
			sign(t, r, "KEY", secret, []string{"host", "x-amz-date"}, body)
			change.edit(r, &body)
			s, err := parseSignature(r, "us-east-1", now)
			if err == nil {
				var text []byte
				if text, err = s.text(r, sha256.Sum256(body)); err == nil && !s.verify([]byte(secret), text) {
					err = refuse(http.StatusForbidden, "", "the signature does not hold")
				}
			}
			switch {
			case change.wrong == "" && err != nil:
				t.Errorf("got %v, want it to hold", err)
			case change.wrong != "" && (err == nil || !strings.Contains(err.Error(), change.wrong)):
				t.Errorf("got %v, want an error with %q", err, change.wrong)
			}
		})
	}
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Header.Set("X-Amz-Date", now.Format(dateTime))
	sign(t, r, "KEY", secret, []string{"host", "x-amz-date"}, nil)
	if _, err := parseSignature(r, "eu-west-1", now); err == nil || !strings.Contains(err.Error(), "scoped") {
		t.Errorf("another region: %v", err)
	}
}

// TestBodyHash: a signed hash in the header must match the body.
func TestBodyHash(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	s := &signature{headers: []string{"host", "x-amz-content-sha256"}}
	if _, err := s.text(r, sha256.Sum256([]byte("x"))); err == nil {
		t.Error("a body that is not signed was taken")
	}
}

// FuzzAuthorization: any Authorization field is parsed or refused with 403.
func FuzzAuthorization(f *testing.F) {
	const whole = "AWS4-HMAC-SHA256 Credential=K/20261124/us-east-1/lambda/aws4_request, SignedHeaders=host;x-amz-date, Signature="
	f.Add(whole + strings.Repeat("0", 64))
	f.Add(whole + strings.Repeat("0", 63))
	f.Add("AWS4-HMAC-SHA256 Credential=///,SignedHeaders=;,Signature=")
	f.Add("AWS4-HMAC-SHA256 ")
	f.Add("Bearer fre_x")
	f.Fuzz(func(t *testing.T, field string) {
		s, err := parseAuthorization(field)
		if err != nil {
			if f := errorOf(err); f.status != http.StatusForbidden {
				t.Errorf("%q: %d %s", field, f.status, f.kind)
			}
			return
		}
		if s.key == "" || len(s.headers) == 0 || len(s.scope) < 9 || s.scope[8] != '/' {
			t.Errorf("%q: %+v", field, s)
		}
		s.verify([]byte("secret"), []byte("text")) // for any scope
		r := httptest.NewRequest(http.MethodGet, "/?"+hex.EncodeToString([]byte(field)), http.NoBody)
		if _, err := s.text(r, sha256.Sum256(nil)); err != nil {
			t.Errorf("%q: %v", field, err)
		}
	})
}

// FuzzCanonical: any path and query have one canonical form.
func FuzzCanonical(f *testing.F) {
	f.Add("/a%2Fb/../c", "b=2&a=1&a=%20+&c")
	f.Add("", "&&=&%zz=%")
	f.Fuzz(func(t *testing.T, path, query string) {
		if p := canonicalPath(path); strings.ContainsAny(p, " \n?") || p == "" {
			t.Errorf("path %q: %q", path, p)
		}
		if q := canonicalQuery(query); strings.ContainsAny(q, " \n?/") {
			t.Errorf("query %q: %q", query, q)
		}
	})
}
