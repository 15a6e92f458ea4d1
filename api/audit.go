package api

import "time"

// AuditEntry is an entry of the audit log.
type AuditEntry struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"who,omitempty"`    // none: nobody knows
	Tenant string    `json:"tenant,omitempty"` // whose that is; "*" for all
	Client string    `json:"client,omitempty"` // address it came from, over TCP
	Action string    `json:"action"`           // "POST /v1/functions", "lambda CreateFunction", "docker POST /containers/create", "authenticate"
	On     string    `json:"on,omitempty"`     // what it was done to
	Result string    `json:"result"`           // done, failed, refused
	Status int       `json:"status,omitempty"` // of the answer
	Reason string    `json:"reason,omitempty"` // why it was refused, or failed
	Missed int       `json:"missed,omitempty"` // entries before this one that could not be written
}

// AuditLine is one line of the answer of the audit route: an entry, or the error that broke
// the stream off.
type AuditLine struct {
	Entry *AuditEntry `json:"entry,omitempty"`
	Error *Error      `json:"error,omitempty"`
}
