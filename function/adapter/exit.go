package adapter

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/fre-engine/fre/function/channel"
)

// Exit statuses, the same in every bootstrap.
const (
	exitFailed    = 1
	exitMalformed = 70
)

// fail sends FAILED.
func fail(conn *net.UnixConn, f *channel.Failure) int {
	if err := channel.Fail(conn, f); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return exitFailed
}

// exitCode converts the channel's end to an exit status.
func exitCode(err error) int {
	switch {
	case errors.Is(err, channel.ErrProtocol):
		fmt.Fprintln(os.Stderr, err)
		return exitMalformed
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return 0
}
