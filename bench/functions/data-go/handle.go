// Package data answers as many bytes as its path says.
package data

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/function"
)

// piece is how much of a stream is given at once.
const piece = 64 << 10

var body = make([]byte, 4<<20)

// Handle answers /N with N bytes, /stream/N with as many in pieces.
func Handle(_ context.Context, e function.Event) (any, error) {
	path, streamed := strings.CutPrefix(e.Path, "/stream")
	n, err := strconv.Atoi(strings.TrimPrefix(path, "/"))
	if err != nil || n < 0 || n > len(body) {
		return nil, fmt.Errorf("path %q is no length", e.Path)
	}
	if streamed {
		return pieces(n), nil
	}
	return body[:n], nil
}

func pieces(n int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for left := n; left > 0; left -= piece {
			if !yield(body[:min(left, piece)], nil) {
				return
			}
		}
	}
}
