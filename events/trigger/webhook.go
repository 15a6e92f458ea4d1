package trigger

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
)

// errSignature is a request that nobody who has the secret has signed. Which part was wrong
// is not told: whoever asks may be guessing.
var errSignature = errors.New("the signature is missing or wrong")

// errStale is one that was signed too long ago, or is of the future.
var errStale = errors.New("the signature's time is too far from now")

// verify checks a request's signature. The key is what the same request, sent again, has too:
// it is made of what is signed, so that nobody without the secret can make another. Senders
// without a signature of the body are known by the id that they give.
func verify(w *image.Webhook, secret []byte, header [][2]string, body []byte, now time.Time) (key string, err error) {
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
		name := w.Header
		if name == "" {
			name = "X-Signature-256"
		}
		var before []byte
		if w.Timestamp != "" {
			at := field(header, w.Timestamp)
			if err := fresh(at, time.Second, w.Tolerance, now); err != nil {
				return "", err
			}
			before = []byte(at + ".")
		}
		return verifyBody(secret, field(header, name), "sha256=", before, body)
	default: // none
		return keyOf(header), nil
	}
}

// verifyBody compares an HMAC-SHA256, in hexadecimal digits or base64, with a prefix or not.
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

// same compares in a time that tells nothing, of the lengths either.
func same(a, b []byte) bool {
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// fresh reads a time in units since 1970 and compares it with now.
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

// verifyGitee: the token is the secret itself, or an HMAC of the time in milliseconds and the
// secret (gitee.com, WebHook signature). It covers no body, so that the key does.
func verifyGitee(w *image.Webhook, secret []byte, header [][2]string, body []byte, now time.Time) (key string, err error) {
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

// verifyStripe reads t=TIME,v1=HEX,…; one of the v1 is of this secret.
func verifyStripe(w *image.Webhook, secret []byte, given string, body []byte, now time.Time) (key string, err error) {
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

// namedKey is what a trigger's template calls a request's key: a field of its header, or a value
// of its body by a JSON pointer; "" where the request has none. Nothing need have signed a field.
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

// pointed is the text, the number or the truth value that a JSON pointer (RFC 6901) leads to.
func pointed(pointer string, body []byte) (string, bool) {
	if !json.Valid(body) {
		return "", false
	}
	value := json.RawMessage(body)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		var members map[string]json.RawMessage
		var items []json.RawMessage
		if json.Unmarshal(value, &members) == nil {
			value = members[token]
		} else if i, err := strconv.Atoi(token); err == nil && json.Unmarshal(value, &items) == nil && 0 <= i && i < len(items) {
			value = items[i]
		} else {
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

// wanted says why a request is none of those that a webhook is about, "" if it is.
func wanted(w *image.Webhook, at string, header [][2]string) string {
	if len(w.Paths) > 0 && !matches(w.Paths, at) {
		return fmt.Sprintf("path %s is none of the trigger's", at)
	}
	names := map[string]bool{} // whether one of the filters of the name matches
	for _, f := range w.Headers {
		name, glob := image.FieldFilter(f)
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
		if ok, _ := path.Match(g, s); ok { // likewise
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

// withoutSecrets are the fields less those that are the secret itself: functions need them not.
func withoutSecrets(header [][2]string) [][2]string {
	var out [][2]string
	for _, f := range header {
		switch http.CanonicalHeaderKey(f[0]) {
		case "X-Gitlab-Token", "X-Gitee-Token", "Authorization":
		default:
			out = append(out, f)
		}
	}
	return out
}
