package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// writeJSON answers with 200 and a body of known length.
func writeJSON(w http.ResponseWriter, mediaType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// writeError writes an error in the form of the distribution-spec.
func writeError(w http.ResponseWriter, e *apiError) {
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, _ := json.Marshal(struct { // strings only
		Errors []one `json:"errors"`
	}{[]one{{e.code, e.message}}})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("Content-Length")
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
}

// page returns the part of names that the parameters n and last select, never nil. It sets Link
// if more names follow.
func page(w http.ResponseWriter, req *http.Request, names []string) ([]string, error) {
	query := req.URL.Query()
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearch(names, last)
		if found {
			i++
		}
		names = names[i:]
	}
	if s := query.Get("n"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, badRequest(codeUnsupported, "n=%.20q is no number of results", s)
		}
		if n < len(names) {
			names = names[:n]
			if n > 0 {
				setNext(w, req.URL.Path, url.Values{"n": {s}, "last": {names[n-1]}})
			}
		}
	}
	if names == nil {
		names = []string{}
	}
	return names, nil
}

// setNext sets the Link to the next part of a list (RFC 8288).
func setNext(w http.ResponseWriter, path string, query url.Values) {
	w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, path, query.Encode()))
}

// after returns the sorted names behind last, or all if last is empty.
func after(names []string, last string) []string {
	if last == "" {
		return names
	}
	i, found := slices.BinarySearch(names, last)
	if found {
		i++
	}
	return names[i:]
}
