package access

import (
	"fmt"
	"time"

	"github.com/fre-engine/fre/failure"
)

// Errors that callers distinguish. ErrExpired is an ErrToken too.
var (
	ErrNoToken     = failure.New(failure.Unauthorized, "a token is needed", "set FRE_TOKEN or FRE_TOKEN_FILE; create a token with fre token create")
	ErrToken       = failure.New(failure.Unauthorized, "the token is not valid", "")
	ErrExpired     = failure.Wrap(failure.Unauthorized, fmt.Errorf("%w: expired", ErrToken), "create another token (fre token create); rotate tokens before the end (fre token rotate)")
	ErrForbidden   = failure.New(failure.Forbidden, "the token does not allow the request", "ask the operator for a token with the missing scope")
	ErrName        = failure.New(failure.BadRequest, "not a name", "")
	ErrInvalid     = failure.New(failure.BadRequest, "not possible", "")
	ErrExists      = failure.New(failure.Exists, "exists already", "")
	ErrUnavailable = failure.New(failure.TokenUnchecked, "the engine cannot check the token now", "")
	ErrSecret      = failure.New(failure.BadRequest, "not a secret's value", "")
)

// SlowDownError says that a rate limit is exceeded, and when the client may try again.
type SlowDownError struct {
	What  string
	Quota bool // the limit is the tenant's quota of events, not the limit of an address
	After time.Duration
}

func (e *SlowDownError) Error() string { return "too many " + e.What }

// Code returns [failure.Quota] or [failure.SlowDown].
func (e *SlowDownError) Code() failure.Code {
	if e.Quota {
		return failure.Quota
	}
	return failure.SlowDown
}

// Next returns the user's next step.
func (e *SlowDownError) Next() string { return "wait for the seconds in Retry-After" }

// RetryAfter returns After, at least a second.
func (e *SlowDownError) RetryAfter() time.Duration { return max(e.After, time.Second) }

// ErrChanged says that another node made a conflicting change first.
var ErrChanged = failure.New(failure.Conflict, "another node made a change meanwhile", "")

// ErrSignature says that a signature does not match the access key. It is an ErrToken.
var ErrSignature = failure.Wrap(failure.BadSignature, fmt.Errorf("%w: the signature does not match", ErrToken), "")
