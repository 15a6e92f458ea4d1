package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
)

// AuditOptions selects entries of the audit log.
type AuditOptions struct {
	Since   time.Time // zero: from the oldest entry
	Tail    int       // only the last Tail entries; at most 10,000
	Tenant  string    // only callers of this tenant; "": all
	Actions []string  // only entries whose action contains one of these strings; nil: all
	Follow  bool      // also new entries, until ctx ends
}

// Audit calls emit for each selected entry of the audit log, oldest first. Audit returns emit's
// error, and an *api.Error with api.CodeGone if a follower reads too slowly.
func (c *Client) Audit(ctx context.Context, o AuditOptions, emit func(api.AuditEntry) error) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}, "action": o.Actions}
	if !o.Since.IsZero() {
		q.Set("since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	if o.Tenant != "" {
		q.Set("tenant", o.Tenant)
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/audit", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "audit log", endsWell, func(line api.AuditLine) (bool, error) {
		switch {
		case line.Error != nil:
			return true, line.Error
		case line.Entry != nil:
			return false, emit(*line.Entry)
		}
		return false, nil
	})
}
