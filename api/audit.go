package api

import "time"

// AuditEntry is an entry of the audit log.
type AuditEntry struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"who,omitempty"`    // empty if the caller is unknown
	Tenant string    `json:"tenant,omitempty"` // tenant of the caller; "*" for all
	Client string    `json:"client,omitempty"` // client address, over TCP
	Action string    `json:"action"`           // "POST /v1/functions", "lambda CreateFunction", "docker POST /containers/create", "authenticate"
	On     string    `json:"on,omitempty"`     // object of the action
	Result string    `json:"result"`           // done, failed, refused
	Status int       `json:"status,omitempty"` // HTTP status of the answer
	Reason string    `json:"reason,omitempty"` // why the action was refused or failed
	Missed int       `json:"missed,omitempty"` // number of preceding entries lost because a write failed
}

// AuditLine is one line of the audit route's answer: an entry, or the error that ended the
// stream.
type AuditLine struct {
	Entry *AuditEntry `json:"entry,omitempty"`
	Error *Error      `json:"error,omitempty"`
}
