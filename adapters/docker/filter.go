package docker

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// filters is the query parameter of lists. For each key, an object must match one of the values.
type filters map[string][]string

// filtersOf parses filters in either format: {"key": {"value": true}} or, from old clients,
// {"key": ["value"]}. An unknown key is an error.
func filtersOf(r *http.Request, known ...string) (filters, error) {
	f, err := parseFilters(r.URL.Query().Get("filters"))
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if !slices.Contains(known, key) {
			return nil, badRequest("invalid filter '%s': use one of %s", key, strings.Join(known, ", "))
		}
	}
	return f, nil
}

func parseFilters(text string) (filters, error) {
	if text == "" {
		return nil, nil
	}
	var sets map[string]map[string]bool
	if json.Unmarshal([]byte(text), &sets) == nil {
		f := make(filters, len(sets))
		for key, set := range sets {
			for value, on := range set {
				if on {
					f[key] = append(f[key], value)
				}
			}
			slices.Sort(f[key])
		}
		return f, nil
	}
	var f filters
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, badRequest("invalid filter: %.100q is not a JSON object of values by key", text)
	}
	return f, nil
}

// has reports whether the filter for key contains one of the values, or is absent.
func (f filters) has(key string, values ...string) bool {
	want, given := f[key]
	if !given {
		return true
	}
	return slices.ContainsFunc(values, func(v string) bool { return slices.Contains(want, v) })
}

// labels reports whether the labels have all labels in the filter label ("key" or "key=value"),
// and none of the labels in the filter label!.
func (f filters) labels(have map[string]string) bool {
	holds := func(want string) bool {
		key, value, valued := strings.Cut(want, "=")
		got, ok := have[key]
		return ok && (!valued || got == value)
	}
	for _, want := range f["label"] {
		if !holds(want) {
			return false
		}
	}
	return !slices.ContainsFunc(f["label!"], holds)
}

// flag parses a boolean filter. given is false if the filter is absent.
func (f filters) flag(key string) (on, given bool, err error) {
	values := f[key]
	if len(values) == 0 {
		return false, false, nil
	}
	for _, v := range values {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return false, true, badRequest("invalid filter '%s=%s': use true or false", key, v)
		}
		on = on || b
	}
	return on, true, nil
}

// moment parses a filter that is a time. The result is zero if the filter is absent.
func (f filters) moment(key string, now time.Time) (time.Time, error) {
	values := f[key]
	switch len(values) {
	case 0:
		return time.Time{}, nil
	case 1:
		t, err := parseTime(values[0], now)
		if err != nil {
			return time.Time{}, badRequest("invalid filter '%s=%s': %v", key, values[0], err)
		}
		return t, nil
	}
	return time.Time{}, badRequest("invalid filter '%s': give a single value", key)
}

// parseTime parses a time as sent by Docker's clients: seconds since 1970 with up to nine
// decimals, RFC 3339, a date with or without time, or a duration before now.
func parseTime(text string, now time.Time) (time.Time, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	if seconds, err := strconv.ParseInt(whole, 10, 64); err == nil && len(fraction) <= 9 {
		nanos := int64(0)
		if fraction != "" {
			if nanos, err = strconv.ParseInt((fraction + "000000000")[:9], 10, 64); err != nil || fraction[0] == '-' || fraction[0] == '+' {
				return time.Time{}, badRequest("%q is not a time", text)
			}
		}
		return time.Unix(seconds, nanos), nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02T15", "2006-01-02Z07:00", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, badRequest("%q is not a time: use seconds since 1970, RFC 3339 or a duration like 10m", text)
}

// parseUntil parses the end of a period. Clients send the current time in whole seconds, so
// whole seconds mean the end of the second.
func parseUntil(text string, now time.Time) (time.Time, error) {
	t, err := parseTime(text, now)
	if _, notWhole := strconv.ParseInt(text, 10, 64); notWhole == nil {
		t = t.Add(time.Second - 1)
	}
	return t, err
}

// like returns a test of texts: a text equals a value of the filter, a value matches a text as a
// regular expression, or the filter is absent.
func (f filters) like(key string) func(texts ...string) bool {
	want, given := f[key]
	if !given {
		return func(...string) bool { return true }
	}
	patterns := make([]*regexp.Regexp, len(want))
	for i, v := range want {
		patterns[i], _ = regexp.Compile(v) // nil: compare the text only
	}
	return func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool {
			return slices.Contains(want, text) || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p != nil && p.MatchString(text) })
		})
	}
}
