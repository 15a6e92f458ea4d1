package lambda

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Signature Version 4
// (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html):
//
//	Authorization: AWS4-HMAC-SHA256 Credential=KEY/20261124/REGION/lambda/aws4_request,
//	    SignedHeaders=host;x-amz-date, Signature=64 hexadecimal digits
//
// The signature covers the method, path, query, named headers, the hash of the body and the
// time. An eavesdropper can replay a request within maxSkew. The protocol has no further
// protection against replay, so use TLS.

const (
	algorithm = "AWS4-HMAC-SHA256"
	maxSkew   = 5 * time.Minute
	dateTime  = "20060102T150405Z"
)

// signature holds the signature data of a request.
type signature struct {
	key     string // id of the access key
	date    string // in the format dateTime
	scope   string // DAY/REGION/lambda/aws4_request
	headers []string
	sum     [sha256.Size]byte
}

// parseSignature parses and checks the headers of a request, before the body is read.
func parseSignature(r *http.Request, region string, now time.Time) (*signature, error) {
	incomplete := func(format string, args ...any) (*signature, error) {
		return nil, refuse(http.StatusForbidden, "IncompleteSignatureException", format, args...)
	}
	var s *signature
	var err error
	switch fields := r.Header.Values("Authorization"); len(fields) {
	case 0:
		return nil, refuse(http.StatusForbidden, "MissingAuthenticationTokenException", "Missing Authentication Token: sign the request with a token's access key (fre token create --access-key)")
	case 1:
		s, err = parseAuthorization(fields[0])
	default:
		return incomplete("several Authorization headers")
	}
	if err != nil {
		return nil, err
	}
	if r.Header.Get("X-Amz-Security-Token") != "" {
		return nil, refuse(http.StatusForbidden, "UnrecognizedClientException", "The security token included in the request is invalid: access keys of FRE have none")
	}
	if name := s.unsigned(r.Header); name != "" {
		return incomplete("the header %s is not signed", name)
	}
	s.date = r.Header.Get("X-Amz-Date")
	at, err := time.Parse(dateTime, s.date)
	if err != nil {
		return incomplete("X-Amz-Date is %q, not a time like %s", clip(s.date), dateTime)
	}
	if _, scope, _ := strings.Cut(s.scope, "/"); s.scope[:8] != s.date[:8] || scope != region+"/lambda/aws4_request" {
		return nil, refuse(http.StatusForbidden, "InvalidSignatureException", "Credential should be scoped to %s/%s/lambda/aws4_request, not %s", s.date[:8], region, clip(s.scope))
	}
	if skew := now.Sub(at).Abs(); skew > maxSkew {
		return nil, refuse(http.StatusForbidden, "InvalidSignatureException", "Signature expired: %s is more than %s from the engine's clock, %s", s.date, maxSkew, now.UTC().Format(dateTime))
	}
	return s, nil
}

// unsigned returns the name of a header that must be signed and is not, or "".
func (s *signature) unsigned(h http.Header) string {
	if !slices.Contains(s.headers, "host") {
		return "host"
	}
	for name := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(s.headers, name) {
			return name
		}
	}
	return ""
}

// lacking is the error of an Authorization header without a valid part.
func lacking(what string) error {
	return refuse(http.StatusForbidden, "IncompleteSignatureException", "the Authorization header has no %s: FRE takes AWS Signature Version 4 (%s)", what, algorithm)
}

// parseAuthorization parses the Authorization header. The returned scope has four parts, and the
// first part has eight digits.
func parseAuthorization(field string) (*signature, error) {
	if len(field) > 4096 {
		return nil, lacking("reasonable length")
	}
	rest, ok := strings.CutPrefix(field, algorithm)
	if !ok || rest == "" || rest[0] != ' ' {
		return nil, lacking(algorithm)
	}
	parts, err := parsePairs(rest)
	if err != nil {
		return nil, err
	}
	if len(parts) != 3 {
		return nil, lacking("list of exactly Credential, SignedHeaders and Signature")
	}
	s := &signature{}
	if err := s.parseCredential(parts["Credential"]); err != nil {
		return nil, err
	}
	if err := s.parseHeaders(parts["SignedHeaders"]); err != nil {
		return nil, err
	}
	if err := s.parseSum(parts["Signature"]); err != nil {
		return nil, err
	}
	return s, nil
}

// parsePairs parses NAME=VALUE,…
func parsePairs(text string) (map[string]string, error) {
	parts := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.Trim(part, " "), "=")
		if _, twice := parts[name]; !ok || twice || value == "" {
			return nil, lacking("pairs of a name and a value, each once")
		}
		parts[name] = value
	}
	return parts, nil
}

func (s *signature) parseCredential(text string) error {
	var ok bool
	if s.key, s.scope, ok = strings.Cut(text, "/"); !ok || s.key == "" || strings.Count(s.scope, "/") != 3 {
		return lacking("Credential=KEY/DAY/REGION/lambda/aws4_request")
	}
	day, _, _ := strings.Cut(s.scope, "/")
	if _, err := strconv.ParseUint(day, 10, 32); err != nil || len(day) != 8 {
		return lacking("day in the Credential")
	}
	return nil
}

func (s *signature) parseHeaders(text string) error {
	s.headers = strings.Split(text, ";")
	for i, h := range s.headers {
		if h == "" || h != strings.ToLower(h) || i > 0 && s.headers[i-1] >= h {
			return lacking("SignedHeaders in small letters and in order")
		}
	}
	return nil
}

func (s *signature) parseSum(text string) error {
	n, err := hex.Decode(s.sum[:min(len(s.sum), hex.DecodedLen(len(text)))], []byte(text[:min(len(text), 2*len(s.sum))]))
	if err != nil || n != len(s.sum) || len(text) != 2*len(s.sum) {
		return lacking("Signature of 64 hexadecimal digits")
	}
	return nil
}

// text returns the text to sign for a body with the given hash. If X-Amz-Content-Sha256 is set,
// the header must equal the hash.
func (s *signature) text(r *http.Request, hash [sha256.Size]byte) ([]byte, error) {
	payload := hex.EncodeToString(hash[:])
	if said := r.Header.Get("X-Amz-Content-Sha256"); said != "" && said != payload {
		return nil, refuse(http.StatusForbidden, "InvalidSignatureException", "X-Amz-Content-Sha256 is not the hash of the body: send the right hash, or no hash")
	}
	raw, query, _ := strings.Cut(r.RequestURI, "?")
	var b bytes.Buffer
	b.WriteString(r.Method + "\n" + canonicalPath(raw) + "\n" + canonicalQuery(query) + "\n")
	for _, h := range s.headers {
		b.WriteString(h + ":" + canonicalHeader(r, h) + "\n")
	}
	b.WriteString("\n" + strings.Join(s.headers, ";") + "\n" + payload)
	request := sha256.Sum256(b.Bytes())
	return []byte(algorithm + "\n" + s.date + "\n" + s.scope + "\n" + hex.EncodeToString(request[:])), nil
}

// verify reports whether secret signed text.
func (s *signature) verify(secret, text []byte) bool {
	key := append([]byte("AWS4"), secret...)
	defer clear(key)
	sum := mac(key, s.scope[:8])
	for part := range strings.SplitSeq(s.scope[9:], "/") {
		sum = mac(sum, part)
	}
	return hmac.Equal(mac(sum, string(text)), s.sum[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// canonicalPath escapes the raw path once more, as all AWS services except S3 do.
func canonicalPath(raw string) string {
	if raw == "" {
		return "/"
	}
	return escape(raw, "/~")
}

// canonicalQuery sorts and normalizes the parameters.
func canonicalQuery(raw string) string {
	if raw == "" {
		return ""
	}
	var pairs [][2]string
	for part := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(part, "=")
		pairs = append(pairs, [2]string{reescape(name), reescape(value)})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	out := make([]string, len(pairs))
	for i, p := range pairs {
		out[i] = p[0] + "=" + p[1]
	}
	return strings.Join(out, "&")
}

// reescape normalizes the percent-encoding of a query part.
func reescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		s = u
	}
	return escape(s, "~")
}

// escape percent-encodes every byte except RFC 3986's unreserved characters and the characters
// in keep.
func escape(s, keep string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._", c) >= 0, strings.IndexByte(keep, c) >= 0:
			b.WriteByte(c)
		default:
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

// canonicalHeader returns the value of a header in canonical form.
func canonicalHeader(r *http.Request, name string) string {
	switch name { // net/http removes these from the headers
	case "host":
		return r.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	}
	values := slices.Clone(r.Header.Values(name))
	for i, v := range values {
		values[i] = strings.Join(strings.Fields(v), " ")
	}
	return strings.Join(values, ",")
}
