package wire

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Caller takes the calls that a function makes while it handles an event.
type Caller interface {
	// Call has another function handle an event, and returns its answer. ctx ends with the
	// calling event, and when the function gives the call up. The function is told any error,
	// preferably a *[Failure].
	Call(ctx context.Context, c *Called) (*Answer, error)
}

// Called is a function's call of another function. Body is valid until the call is over. If Body
// is an io.Closer, it may be closed before.
type Called struct {
	Function string // as the calling function writes it
	Request
}

// CallMeta is the JSON of CALL and CALLFILE.
type CallMeta struct {
	Of uint64 // id of the event being handled
	Called
}

// Check refuses metadata that an HTTP request cannot have.
func (m *CallMeta) Check() error {
	switch {
	case !token(m.Method):
		return fmt.Errorf("%w: a call's method %q", ErrProtocol, m.Method)
	case !strings.HasPrefix(m.Path, "/") || !visible(m.Path) || !visible(m.Query):
		return fmt.Errorf("%w: a call's path %q?%q", ErrProtocol, m.Path, m.Query)
	case len(m.Headers) > MaxHeaders:
		return fmt.Errorf("%w: %d headers", ErrProtocol, len(m.Headers))
	}
	for _, h := range m.Headers {
		if !token(h[0]) || !fieldValue(h[1]) {
			return badHeader(h[:])
		}
	}
	return nil
}

// Answer is the answer to a function's call.
type Answer struct {
	Status  int // 200 to 599
	Headers [][2]string
	Body    io.Reader // may be nil. If it is an io.Closer, the channel closes it
	Length  int64     // bytes of Body, if they are known to end there
}
