package main

import (
	"fmt"
	"strings"
)

// clipped keeps the beginning and the end of output.
type clipped struct {
	head, tail []byte
	lost       int
}

func (c *clipped) add(s string) {
	n := min(len(s), clipHead-len(c.head))
	c.head = append(c.head, s[:n]...)
	c.tail = append(c.tail, s[n:]...)
	if over := len(c.tail) - clipTail; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
		c.lost += over
	}
}

func (c *clipped) String() string {
	if c.lost == 0 {
		return strings.ToValidUTF8(string(c.head)+string(c.tail), "\ufffd")
	}
	mark := fmt.Sprintf("\n[%d bytes omitted: write the output to a file, and read the file in parts with read_file]\n", c.lost)
	return strings.ToValidUTF8(string(c.head), "\ufffd") + mark + strings.ToValidUTF8(string(c.tail), "\ufffd")
}

const (
	clipHead  = 48 << 10
	clipTail  = 16 << 10
	readBytes = 64 << 10

	// mostPicture is the largest picture that read_file returns as a picture, in bytes: models
	// accept no larger ones.
	mostPicture = 5 << 20
)
