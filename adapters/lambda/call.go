package lambda

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strings"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/internal/wording"
)

// call is one request in progress. id and tenant are set after authentication.
type call struct {
	w        http.ResponseWriter
	r        *http.Request
	id       access.Identity
	client   netip.Addr
	tenant   string
	body     []byte
	bodyFile string // file of a body that may hold code, until load; "" for none
	// release frees the slot or the memory of a body that may hold code, for the next request.
	release func()
	on      string // function's name, for the audit log
	status  int    // status of the answer; 0 before the answer
}

// reply sends v as JSON.
func (c *call) reply(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.send(status, body)
	return nil
}

func (c *call) send(status int, body []byte) {
	c.status = status
	c.w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = c.w.Write(body) // an error means that the connection ends
	}
}

// decode parses the body and rejects unknown fields, so no setting is silently ignored. Harmless
// fields without a meaning in FRE are explicit fields of the request types.
func (c *call) decode(v any) error {
	if len(c.body) == 0 {
		c.body = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("several JSON values")
	}
	if err == nil {
		return nil
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return refuse(http.StatusBadRequest, "InvalidParameterValueException", "%s is not supported: see docs/lambda.md", field)
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return refuse(http.StatusBadRequest, "InvalidParameterValueException", "%s", wording.JSON(err))
	}
	return refuse(http.StatusBadRequest, "InvalidRequestContentException", "Could not parse request body into json: %v", err)
}
