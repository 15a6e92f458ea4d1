package origin

import (
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/httpserver/accesslog"
)

// Access is an answer's entry in the access log, a line of JSON.
type Access struct {
	Time    time.Time `json:"time"` // start of the exchange
	Asset   string    `json:"asset,omitempty"`
	Client  string    `json:"client,omitempty"` // address
	Method  string    `json:"method"`
	Path    string    `json:"path"` // relative to the asset's address; without the signature, which would give readers of the log access
	Range   string    `json:"range,omitempty"`
	Status  int       `json:"status"`
	Bytes   int64     `json:"bytes"` // of the answer's body; 0 if the connection broke
	Micros  int64     `json:"micros"`
	Session string    `json:"session,omitempty"` // the player's session id, by CMCD
}

// AccessLog writes a line for each answer.
type AccessLog = accesslog.Log[Access]

// exchange is an HTTP exchange with the data for its log entry.
type exchange struct {
	*httpserver.Exchange
	status int
	bytes  int64
	id     []byte // of the asset, as in the address
	path   []byte // relative to the asset's address
	shelf  *shelf // nil: none found
}

// Send answers with a body from memory.
func (x *exchange) Send(status int, body []byte) error {
	err := x.Exchange.Send(status, body)
	x.sent(status, int64(len(body)), err)
	return err
}

// SendFile answers with a part of a file.
func (x *exchange) SendFile(status int, f *os.File, offset, length int64) error {
	err := x.Exchange.SendFile(status, f, offset, length)
	x.sent(status, length, err)
	return err
}

func (x *exchange) sent(status int, n int64, err error) {
	x.status = status
	if err == nil && string(x.Method) != http.MethodHead && status != http.StatusNoContent && status != http.StatusNotModified {
		x.bytes = n
	}
}

// session returns the player's session id: the key sid of CTA-5004 (CMCD) in the field
// CMCD-Session, or in the parameter CMCD of the query; else "".
func session(h *httpserver.Head) string {
	text := h.Field("Cmcd-Session")
	if text == "" && len(h.Query) > 0 {
		for pair := range strings.SplitSeq(string(h.Query), "&") {
			if value, ok := strings.CutPrefix(pair, "CMCD="); ok {
				text, _ = url.QueryUnescape(value) // "" for a malformed value
				break
			}
		}
	}
	return sessionID(text)
}

// sessionID returns the value of sid in a CMCD list, a string of at most 64 printable characters,
// or "".
func sessionID(list string) string {
	for list != "" {
		at := strings.Index(list, `sid="`)
		if at < 0 {
			return ""
		}
		begins := at == 0 || list[at-1] == ',' || list[at-1] == ' '
		value, rest, closed := strings.Cut(list[at+len(`sid="`):], `"`)
		if begins {
			if !closed || len(value) > 64 || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
				return ""
			}
			return value
		}
		list = rest
	}
	return ""
}
