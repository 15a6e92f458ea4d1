package live

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Output is one stream of a sandbox on its way to the function's log.
type Output struct {
	Stream   string
	R, W     *os.File
	Revision int // of the function
}

// Pipes makes the outputs of a sandbox that is about to start. The caller ends with settle.
func (l *Log) Pipes(revision int, streams ...string) ([]Output, error) {
	outputs := make([]Output, 0, len(streams))
	for _, stream := range streams {
		r, w, err := OutputPipe()
		if err != nil {
			err = fmt.Errorf("make %s: %w", stream, err)
			l.Settle(nil, outputs, "", err)
			return nil, err
		}
		outputs = append(outputs, Output{Stream: stream, R: r, W: w, Revision: revision})
	}
	return outputs, nil
}

// Settle follows the outputs of a sandbox that has started, and closes the outputs if the start
// failed with err. Following from the start would cost the start one goroutine's wake-up per
// output.
func (l *Log) Settle(life *Life, outputs []Output, sandbox string, err error) {
	for _, o := range outputs {
		_ = o.W.Close()
		if err != nil {
			_ = o.R.Close()
		} else {
			l.Follow(life, o, sandbox)
		}
	}
}

// Follow writes the lines of a pipe to the log until every holder of the write end has closed it.
// Follow owns o.R.
func (l *Log) Follow(life *Life, o Output, sandbox string) {
	life.Spawn(func() {
		defer o.R.Close()
		if prints(o.R) {
			l.CopyLines(o.R, LogLine{Revision: o.Revision, Sandbox: sandbox, Stream: o.Stream})
		}
	})
}

// prints waits until a pipe has data, or returns false if the pipe ends first. Most programs
// print nothing, and need no buffer.
func prints(r *os.File) bool {
	conn, err := r.SyscallConn()
	if err != nil {
		return false
	}
	p := []unix.PollFd{{Events: unix.POLLIN}}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		p[0].Fd = int32(fd)
		_, failed = unix.Poll(p, 0)
		return failed != nil || p[0].Revents != 0
	})
	return err == nil && (failed != nil || p[0].Revents&unix.POLLIN != 0)
}

// OutputPipe makes a pipe. The poller watches the read end; the write end blocks, as programs
// expect. os.Pipe makes both ends for Go, at twice the system calls.
func OutputPipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// CopyLines writes the lines of r to the log. Lines longer than maxLogLine become pieces that end
// between characters.
func (l *Log) CopyLines(r io.Reader, of LogLine) {
	br := bufio.NewReaderSize(r, maxLogLine)
	var batch []LogLine
	var held []byte // the end of a piece, moved to the next piece
	for {
		text, err := br.ReadSlice('\n')
		of.More = errors.Is(err, bufio.ErrBufferFull)
		ended := err != nil && !of.More
		if len(held) > 0 {
			text = append(held, text...)
			held = nil
		}
		if of.More {
			n := wholeCharacters(text)
			text, held = text[:n], bytes.Clone(text[n:])
		}
		if len(text) > 0 || ended && of.Rest {
			of.Time, of.Text = time.Now(), strings.ToValidUTF8(string(bytes.TrimRight(text, "\r\n")), "\uFFFD")
			of.Partial = len(text) == 0 || text[len(text)-1] != '\n'
			batch = append(batch, of)
			of.Rest = of.More
		}
		if len(batch) > 0 && (ended || br.Buffered() == 0 || len(batch) == 64) {
			l.Append(batch...)
			batch = batch[:0]
			if !ended {
				dropped, err := l.drain(br)
				if dropped { // with the rest of the line
					of.Rest, held = false, nil
				}
				ended = err != nil
			}
		}
		if ended {
			return
		}
	}
}

// wholeCharacters returns the length of text without an incomplete character at the end: in
// UTF-8, or CR without LF.
func wholeCharacters(text []byte) int {
	n := len(text)
	if n > 0 && text[n-1] == '\r' {
		return n - 1
	}
	for i := n - 1; i >= 0 && n-i < utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return n
}

// drain returns at once while budget is left. Otherwise drain drops all input of this second, at
// the pace of DrainBytes, and then the rest of the line begun. dropped reports any loss.
func (l *Log) drain(br *bufio.Reader) (dropped bool, err error) {
	if drop, _ := l.Drop(0); !drop {
		return false, nil
	}
	whole := true // no part of the next line was dropped
	for {
		if _, err := br.Peek(1); err != nil { // waits
			return dropped, err
		}
		text, _ := br.Peek(br.Buffered())
		drop, wait := l.Drop(len(text))
		if !drop {
			break
		}
		if wait > 0 {
			<-time.After(wait)
		}
		dropped, whole = true, text[len(text)-1] == '\n'
		_, _ = br.Discard(len(text)) // buffered, so never fails
	}
	for !whole {
		_, err := br.ReadSlice('\n')
		whole = !errors.Is(err, bufio.ErrBufferFull)
		if err != nil && whole {
			return dropped, err
		}
	}
	return dropped, nil
}
