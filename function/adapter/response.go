package adapter

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// readResponse skips interim answers except 101.
func readResponse(r *bufio.Reader, method string) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return resp, nil
		case resp.StatusCode >= 100 && resp.StatusCode < 200:
			continue
		case resp.StatusCode < 200 || resp.StatusCode > 599:
			return nil, fmt.Errorf("status %d is not from 200 to 599", resp.StatusCode)
		}
		return resp, nil
	}
}

// answerHeaders returns the answer's end-to-end headers, sorted by name. Invalid headers are an
// error, because the engine would take them for a broken protocol.
func answerHeaders(resp *http.Response) ([][2]string, error) {
	out := [][2]string{}
	for name, values := range resp.Header {
		if hopByHop[name] {
			continue
		}
		for _, v := range values {
			if !token(name) || strings.ContainsFunc(v, control) {
				return nil, fmt.Errorf("header %q has control characters in %q", name, v)
			}
			out = append(out, [2]string{name, v})
		}
	}
	if len(out) > channel.MaxHeaders {
		return nil, fmt.Errorf("%d headers, at most %d", len(out), channel.MaxHeaders)
	}
	slices.SortStableFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out, nil
}
