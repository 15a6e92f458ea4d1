package server

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// query reads the parameters of a request's query. An absent parameter has its default. The first
// malformed parameter stays in err, a bad request.
type query struct {
	url.Values
	err error
}

func queryOf(r *http.Request) *query { return &query{Values: r.URL.Query()} }

func (q *query) refuse(key, why string) {
	q.err = cmp.Or(q.err, badRequest("%s: %q %s", key, q.Get(key), why))
}

func (q *query) flag(key string) bool {
	v := q.Get(key)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.refuse(key, "is neither true nor false")
	}
	return b
}

// number returns a number from least to most; kind is the end of the error's sentence. With a
// default below least the parameter is required.
func (q *query) number(key string, absent, least, most int, kind string) int {
	v := q.Get(key)
	if v == "" && absent >= least {
		return absent
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		q.refuse(key, kind)
	}
	return n
}

func (q *query) time(key string) time.Time {
	v := q.Get(key)
	if v == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		q.refuse(key, "is not an RFC 3339 time")
	}
	return at
}
