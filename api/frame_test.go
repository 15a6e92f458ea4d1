package api

import (
	"bytes"
	"testing"
)

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, FrameStdin, []byte("hello")))
	f.Add(AppendFrame(nil, FrameKill, nil))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255})
	f.Add([]byte{9, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 3, 'a'})
	f.Fuzz(func(t *testing.T, wire []byte) {
		kind, payload, err := ReadFrame(bytes.NewReader(wire), make([]byte, MaxFrame))
		if err != nil {
			return
		}
		if got := AppendFrame(nil, kind, payload); !bytes.Equal(got, wire[:len(got)]) {
			t.Errorf("ReadFrame(% x) = %d, % x, which encodes as % x", wire, kind, payload, got)
		}
	})
}
