// Package data answers with as many bytes as the path requests.
package data

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/fre-engine/fre/function"
)

// piece is the size of the pieces of a stream.
const piece = 64 << 10

// sealable is the size from which a repeated answer is sealed once and reused.
const sealable = 32 << 10

var body = make([]byte, 4<<20)

var (
	mu     sync.Mutex
	sealed = map[int]*function.Sealed{} // by length
)

// Handle answers /N with N bytes, from a sealed and reused answer if N is at least sealable;
// /anew/N with bytes that are sent anew; and /stream/N with N bytes in pieces.
func Handle(_ context.Context, e function.Event) (any, error) {
	path, streamed := strings.CutPrefix(e.Path, "/stream")
	path, anew := strings.CutPrefix(path, "/anew")
	n, err := strconv.Atoi(strings.TrimPrefix(path, "/"))
	if err != nil || n < 0 || n > len(body) {
		return nil, fmt.Errorf("path %q is no length", e.Path)
	}
	if streamed {
		return pieces(n), nil
	}
	if anew || n < sealable {
		return body[:n], nil
	}
	mu.Lock()
	defer mu.Unlock()
	if sealed[n] == nil {
		if sealed[n], err = function.Seal(body[:n]); err != nil {
			return nil, err
		}
	}
	return sealed[n], nil
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
