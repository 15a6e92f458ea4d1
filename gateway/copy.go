package gateway

import "io"

// copySize is the buffer for copying bodies, in bytes. A body that fits is sent together with its
// head.
const copySize = 64 << 10

// streamSize is the buffer for tunnels and compressed streams, in bytes: small, since they may
// last long.
const streamSize = 16 << 10

// writerOnly hides ReadFrom from io.Copy.
type writerOnly struct{ io.Writer }

// readerOnly hides WriteTo from io.CopyBuffer.
type readerOnly struct{ io.Reader }
