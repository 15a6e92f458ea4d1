package trigger

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/template"
)

// errSignature says that the request has no valid signature. It does not say which part is wrong,
// because the sender may be guessing.
var errSignature = errors.New("the signature is missing or wrong")

// errStale says that the request was signed too long ago, or in the future.
var errStale = errors.New("the signature's time is too far from now")

// verify checks a request's signature. key is equal when the same request comes again; it is made
// of signed data, so that only a holder of the secret can make another. For services that do not
// sign the body, key is the id that the sender gives.
func verify(w *template.Webhook, secret []byte, header [][2]string, body []byte, now time.Time) (key string, err error) {
	switch w.Signature {
	case "github": // docs.github.com: Validating webhook deliveries
		return verifyBody(secret, field(header, "X-Hub-Signature-256"), "sha256=", nil, body)
	case "gitlab": // docs.gitlab.com: Webhooks, Validate payloads by using a secret token
		if !same([]byte(field(header, "X-Gitlab-Token")), secret) {
			return "", errSignature
		}
		return firstOf(header, "Idempotency-Key", "X-Gitlab-Event-Uuid", "Webhook-Id"), nil
	case "gitee":
		return verifyGitee(w, secret, header, body, now)
	case "stripe": // docs.stripe.com: Verify webhook signatures manually
		return verifyStripe(w, secret, field(header, "Stripe-Signature"), body, now)
	case "hmac":
		return verifyHMAC(w, secret, header, body, now)
	default: // none
		return keyOf(header), nil
	}
}

// verifyHMAC checks a signature in the fields that the template names.
func verifyHMAC(w *template.Webhook, secret []byte, header [][2]string, body []byte, now time.Time) (key string, err error) {
	var before []byte
	if w.Timestamp != "" {
		at := field(header, w.Timestamp)
		if err := fresh(at, time.Second, w.Tolerance, now); err != nil {
			return "", err
		}
		before = []byte(at + ".")
	}
	return verifyBody(secret, field(header, cmp.Or(w.Header, "X-Signature-256")), "sha256=", before, body)
}

// verifyBody checks an HMAC-SHA256 in hexadecimal or base64, with or without the prefix.
func verifyBody(secret []byte, given, prefix string, before, body []byte) (key string, err error) {
	given = strings.TrimPrefix(given, prefix)
	mac, err := hex.DecodeString(given)
	if err != nil {
		if mac, err = base64.StdEncoding.DecodeString(given); err != nil {
			return "", errSignature
		}
	}
	want := sum(secret, before, body)
	if !hmac.Equal(mac, want) {
		return "", errSignature
	}
	return string(want), nil
}

func sum(secret []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, secret)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// same compares in a time that reveals neither contents nor lengths.
func same(a, b []byte) bool {
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// fresh reads a time in units since 1970 and compares the time with now.
func fresh(at string, unit, tolerance time.Duration, now time.Time) error {
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || n < 0 || n > int64((1<<62)/unit) {
		return errSignature
	}
	if d := now.Sub(time.Unix(0, n*int64(unit))); d.Abs() > tolerance {
		return errStale
	}
	return nil
}

// verifyGitee accepts the secret itself as token, or an HMAC of the secret and the time in
// milliseconds (gitee.com, WebHook signature). The token does not cover the body; the key does.
func verifyGitee(w *template.Webhook, secret []byte, header [][2]string, body []byte, now time.Time) (key string, err error) {
	token, at := field(header, "X-Gitee-Token"), field(header, "X-Gitee-Timestamp")
	digest := sha256.Sum256(body)
	if same([]byte(token), secret) {
		return at + string(digest[:]), nil
	}
	if err := fresh(at, time.Millisecond, w.Tolerance, now); err != nil {
		return "", err
	}
	mac, err := base64.StdEncoding.DecodeString(token)
	if err != nil || !hmac.Equal(mac, sum(secret, []byte(at+"\n"), secret)) {
		return "", errSignature
	}
	return at + string(digest[:]), nil
}

// verifyStripe reads t=TIME,v1=HEX,… and accepts if one v1 is made with the secret.
func verifyStripe(w *template.Webhook, secret []byte, given string, body []byte, now time.Time) (key string, err error) {
	at := ""
	var macs []string
	for part := range strings.SplitSeq(given, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			at = value
		case "v1":
			macs = append(macs, value)
		}
	}
	err = errSignature
	for _, m := range macs[:min(len(macs), 8)] {
		if key, merr := verifyBody(secret, m, "", []byte(at+"."), body); merr == nil {
			return key, fresh(at, time.Second, w.Tolerance, now)
		}
	}
	return "", err
}

// namedKey returns the key that the template asks for: a header field, or a value of the body by a
// JSON pointer; "" if the request has none. A field need not be signed.
func namedKey(name string, header [][2]string, body []byte) string {
	value := field(header, name)
	if strings.HasPrefix(name, "/") {
		value, _ = pointed(name, body)
	}
	if value == "" {
		return ""
	}
	return name + "\x00" + value
}

// pointed returns the string, number or boolean to which a JSON pointer (RFC 6901) leads.
func pointed(pointer string, body []byte) (string, bool) {
	if !json.Valid(body) {
		return "", false
	}
	value := json.RawMessage(body)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		var ok bool
		if value, ok = member(value, token); !ok {
			return "", false
		}
	}
	var text string
	if json.Unmarshal(value, &text) == nil && string(value) != "null" {
		return text, true
	}
	plain := string(value)
	if plain == "" || plain == "null" || strings.ContainsAny(plain[:1], "{[") {
		return "", false
	}
	return plain, true
}

// member returns a member of an object, nil if absent, or an item of an array.
func member(value json.RawMessage, token string) (json.RawMessage, bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(value, &members) == nil {
		return members[token], true
	}
	var items []json.RawMessage
	if i, err := strconv.Atoi(token); err == nil && json.Unmarshal(value, &items) == nil && 0 <= i && i < len(items) {
		return items[i], true
	}
	return nil, false
}

// wanted returns why a request does not match the webhook's filters, "" if it does.
func wanted(w *template.Webhook, at string, header [][2]string) string {
	if len(w.Paths) > 0 && !matches(w.Paths, at) {
		return fmt.Sprintf("path %s is none of the trigger's", at)
	}
	names := map[string]bool{} // whether one filter with the name matches
	for _, f := range w.Headers {
		name, glob := template.FieldFilter(f)
		ok, _ := path.Match(glob, field(header, name)) // the pattern was checked with the template
		names[name] = names[name] || ok
	}
	for name, ok := range names {
		if !ok {
			return fmt.Sprintf("field %s is none of the trigger's", name)
		}
	}
	return ""
}

func matches(globs []string, s string) bool {
	for _, g := range globs {
		if ok, _ := path.Match(g, s); ok { // the pattern was checked with the template
			return true
		}
	}
	return false
}

func firstOf(header [][2]string, names ...string) string {
	for _, n := range names {
		if v := field(header, n); v != "" {
			return n + "\x00" + v
		}
	}
	return ""
}

// withoutSecrets drops the fields that hold a secret itself, because functions do not need them.
func withoutSecrets(header [][2]string) [][2]string {
	var out [][2]string
	for _, f := range header {
		switch textproto.CanonicalMIMEHeaderKey(f[0]) {
		case "X-Gitlab-Token", "X-Gitee-Token", "Authorization":
		default:
			out = append(out, f)
		}
	}
	return out
}
