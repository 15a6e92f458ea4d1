// Command warm echoes the body of each event. The process serves many events, several at once, over
// the function channel, with package channel's Serve.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/fre-engine/fre/function/channel"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	conn, err := channel.Inherited()
	if err != nil {
		return err
	}
	ready := channel.Ready{Runtime: runtime.Version(), Concurrency: 64}
	return channel.Serve(context.Background(), conn, ready, echo)
}

func echo(_ context.Context, e *channel.Event) (*channel.Answer, error) {
	body, err := io.ReadAll(e.Body) // echo owns the body until it returns
	if err != nil {
		return nil, err
	}
	return &channel.Answer{Body: bytes.NewReader(body)}, nil
}
