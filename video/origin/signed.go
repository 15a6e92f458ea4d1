package origin

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// signer signs addresses. Without a key it signs none and accepts all.
type signer struct {
	key []byte
	now func() time.Time
}

// signature returns the signature of an id and its expiry.
func (s *signer) signature(id, expires string) string {
	h := hmac.New(sha256.New, s.key)
	_, _ = h.Write([]byte(id + "\n" + expires)) // never fails
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:18])
}

// address returns path, with a signature that is valid for a limited time.
func (s *signer) address(path, id string, valid time.Duration) string {
	if s.key == nil {
		return path
	}
	expires := strconv.FormatInt(s.now().Add(valid).Unix(), 10)
	return path + "/@" + expires + "-" + s.signature(id, expires)
}

// verify checks and removes @EXPIRES-SIGNATURE/ at the start of a path. A non-empty problem refuses
// the request.
func (s *signer) verify(id string, path []byte) (rest []byte, problem string) {
	if s.key == nil {
		return path, ""
	}
	signed, rest, ok := bytes.Cut(path, []byte{'/'})
	expires, signature, found := strings.Cut(string(signed), "-")
	expires, at := strings.CutPrefix(expires, "@")
	if !ok || !found || !at {
		return nil, "the address is not signed"
	}
	if !hmac.Equal([]byte(signature), []byte(s.signature(id, expires))) {
		return nil, "the address's signature is wrong"
	}
	if t, err := strconv.ParseInt(expires, 10, 64); err != nil || !s.now().Before(time.Unix(t, 0)) {
		return nil, "the address has expired"
	}
	return rest, ""
}
