package live

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bluenviron/gortmplib"
	"github.com/bluenviron/gortmplib/pkg/amf0"
	"github.com/bluenviron/gortmplib/pkg/message"
)

// Limits of publishers.
const (
	mostPublishers = 256              // connections at a time
	timeToPublish  = 10 * time.Second // from the connection to a valid key
	timeToSend     = 10 * time.Second // from one byte to the next
	mostGreeting   = 256 << 10        // bytes before a valid key
	mostPartial    = 24 << 20         // bytes of incomplete messages
	leastChunk     = 128              // bytes; the default of RTMP 1.0
)

// ServeRTMP accepts publishers at rtmp://HOST:PORT/live/NAME?key=KEY until l or the server is
// closed. H.264 and AAC are passed on unchanged.
func (v *Server) ServeRTMP(l net.Listener) error {
	v.listening("rtmp", l.Addr())
	stop := context.AfterFunc(v.ctx, func() { _ = l.Close() }) // ends Accept
	defer stop()
	places := make(chan struct{}, mostPublishers)
	strangers := &lobby{}
	for {
		conn, err := l.Accept()
		if err != nil {
			if v.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			v.cfg.Log.Warn("accept a publisher", "error", err)
			if sleep(v.ctx, 100*time.Millisecond) != nil {
				return nil
			}
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			if !strangers.giveWay() {
				_ = conn.Close() // too many publishers with a valid key
				continue
			}
			places <- struct{}{} // the closed connection frees its slot
		}
		strangers.enter(conn)
		if !v.Go(func() {
			defer func() { <-places }()
			defer strangers.leave(conn)
			v.publishRTMP(conn, strangers)
		}) {
			return conn.Close()
		}
	}
}

// lobby holds the connections without a valid key yet. When all slots are taken, the oldest such
// connection is closed, so idle strangers do not keep publishers out.
type lobby struct {
	mu      sync.Mutex
	waiting []net.Conn // the oldest first
}

func (l *lobby) enter(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
}

func (l *lobby) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// giveWay closes the oldest connection and reports whether the lobby had any.
func (l *lobby) giveWay() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return false
	}
	_ = l.waiting[0].Close() // the publisher is a stranger: the error has no use
	l.waiting = slices.Delete(l.waiting, 0, 1)
	return true
}

// wire is a publisher's connection with limits on time and bytes.
type wire struct {
	net.Conn
	until time.Time // deadline of the handshake; zero: the handshake is over
	left  int       // bytes allowed until then
	read  int64

	mu    sync.Mutex
	ended bool // Read fails, but a last message may still be written
}

// end fails the Read under way and every later Read.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	_ = w.SetDeadline(time.Unix(1, 0)) // the connection may be closed already
}

// prepare sets the deadline of a Read.
func (w *wire) prepare() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return errReplaced
	}
	deadline := w.until
	if deadline.IsZero() {
		deadline = time.Now().Add(timeToSend)
	}
	return w.SetDeadline(deadline)
}

func (w *wire) Read(p []byte) (int, error) {
	if err := w.prepare(); err != nil {
		return 0, err
	}
	if !w.until.IsZero() {
		if w.left <= 0 {
			return 0, errors.New("too much before the key")
		}
		p = p[:min(len(p), w.left)]
	}
	n, err := w.Conn.Read(p)
	w.left -= n
	w.read += int64(n)
	return n, err
}

// publishRTMP serves a publisher's connection. The connection leaves strangers once its key is
// valid.
func (v *Server) publishRTMP(conn net.Conn, strangers *lobby) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	w := &wire{Conn: conn, until: time.Now().Add(timeToPublish), left: mostGreeting}
	stop := context.AfterFunc(ctx, w.end) // ends the Read under way
	defer stop()
	log := v.cfg.Log.With("publisher", conn.RemoteAddr().String())
	peer := &gortmplib.ServerConn{RW: w}
	err := guard(func() error {
		c, err := v.handshake(peer)
		if err != nil {
			return err
		}
		strangers.leave(conn)
		w.until = time.Time{}
		log = log.With("stream", c.Name)
		release, err := c.claim(ctx, conn.RemoteAddr().String(), cancel)
		if err != nil {
			return err
		}
		log.Info("a publisher has come")
		err = guard(func() error { return receive(peer, &w.read, &intake{Stream: c.Stream, ctx: ctx}) })
		switch {
		case v.ctx.Err() != nil:
			err = errStopping
		case ctx.Err() != nil:
			err = errReplaced
		}
		release(err)
		return err
	})
	log.Info("a publisher has gone", "why", err)
	if err != nil && !errors.Is(err, errGone) && w.until.IsZero() || errors.Is(err, errKey) {
		_ = guard(func() error { return v.tell(w, peer, err) }) // the publisher may have gone
	}
}

// timeToTell is how long a publisher has to read the reason of its rejection.
const timeToTell = 2 * time.Second

// tell sends a publisher the reason of its rejection. Afterwards tell reads and drops the data
// sent meanwhile: closing a connection with unread data resets the connection, and the publisher
// would lose the reason.
func (v *Server) tell(w *wire, peer *gortmplib.ServerConn, why error) error {
	stop := context.AfterFunc(v.ctx, func() { _ = w.Close() })
	defer stop()
	if err := w.SetDeadline(time.Now().Add(timeToTell)); err != nil {
		return err
	}
	code := "NetStream.Publish.Rejected"
	if errors.Is(why, errKey) {
		code = "NetStream.Publish.BadName"
	}
	if err := peer.Write(&message.CommandAMF0{
		ChunkStreamID: 5, MessageStreamID: 0x1000000, Name: "onStatus",
		Arguments: []any{nil, amf0.Object{{Key: "level", Value: "error"}, {Key: "code", Value: code}, {Key: "description", Value: why.Error()}}},
	}); err != nil {
		return err
	}
	if c, ok := w.Conn.(*net.TCPConn); ok {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, io.LimitReader(w.Conn, mostPartial))
	return err
}

// guard turns a panic into an error, since third-party code parses a publisher's bytes.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("what was sent cannot be parsed: %v", p)
		}
	}()
	return do()
}

// handshake does the RTMP handshake and returns the stream of a valid key. By then the library has
// told the publisher to begin.
func (v *Server) handshake(peer *gortmplib.ServerConn) (*channel, error) {
	if err := peer.Initialize(); err != nil {
		return nil, err
	}
	if err := peer.Accept(); err != nil {
		return nil, err
	}
	if !peer.Publish {
		return nil, errors.New("nothing is played by RTMP")
	}
	name, ok := strings.CutPrefix(strings.TrimRight(peer.URL.Path, "/"), "/live/")
	if !ok {
		return nil, errKey
	}
	return v.admit(name, peer.URL.Query().Get("key"))
}

// admit returns the stream of a name and its key. The error is errKey.
func (v *Server) admit(name, key string) (*channel, error) {
	c := v.channel(name)
	if c == nil || c.Key == "" || subtle.ConstantTimeCompare([]byte(c.Key), []byte(key)) != 1 {
		return nil, errKey
	}
	return c, nil
}

// receive takes a publisher's messages until the connection ends. read points to the number of
// bytes read from the connection.
func receive(peer interface {
	Read() (message.Message, error)
}, read *int64, in *intake,
) error {
	partial := int64(0)
	for {
		before := *read
		m, err := peer.Read()
		if errors.Is(err, io.EOF) {
			return errGone
		}
		if err != nil {
			return err
		}
		// The library holds the chunks of incomplete messages in memory. A publisher with too
		// many is hostile. The estimate is rough, since a message's size on the wire is unknown.
		partial += *read - before
		payload, ended, err := in.rtmp(m)
		if err != nil || ended {
			return err
		}
		if partial = max(0, partial-int64(payload+payload/4+64)); partial > mostPartial {
			return fmt.Errorf("%d bytes of messages that do not end", partial)
		}
	}
}

// rtmp takes a message. payload is the size of the message's media data, and ended says that the
// publisher has ended the stream.
func (in *intake) rtmp(m message.Message) (payload int, ended bool, err error) {
	switch m := m.(type) {
	case *message.SetChunkSize:
		if m.Value < leastChunk {
			return 0, false, fmt.Errorf("chunks of %d bytes", m.Value)
		}
	case *message.Video:
		return len(m.AU), false, in.rtmpVideo(m)
	case *message.Audio:
		return len(m.AU), false, in.rtmpAudio(m)
	case *message.VideoExSequenceStart, *message.VideoExCodedFrames, *message.VideoExFramesX, *message.VideoExMultitrack, *message.AudioExSequenceStart, *message.AudioExCodedFrames, *message.AudioExMultitrack:
		return 0, false, errCodec
	case *message.CommandAMF0:
		return 0, m.Name == "deleteStream" || m.Name == "FCUnpublish" || m.Name == "closeStream", nil
	}
	return 0, false, nil
}

// milliseconds converts an RTMP time to units of clockRate.
func milliseconds(d time.Duration) int64 { return int64(d/time.Millisecond) * (clockRate / 1000) }

// unwrap converts an RTMP time to units of clockRate. RTMP times have 32 bits of milliseconds and
// wrap every 50 days.
func (in *intake) unwrap(d time.Duration) int64 {
	ms := uint32(d / time.Millisecond)
	if !in.timed {
		in.timed, in.time = true, int64(ms)
	}
	in.time += int64(int32(ms - uint32(in.time))) // the nearest time with these 32 bits
	return in.time * (clockRate / 1000)
}

func (in *intake) rtmpVideo(m *message.Video) error {
	if m.Codec != message.CodecH264 {
		return errCodec
	}
	switch m.Type {
	case message.VideoTypeConfig:
		if m.AVCConfig == nil {
			return errCodec
		}
		in.size = int(m.AVCConfig.LengthSizeMinusOne) + 1
		var sps, pps [][]byte
		for _, set := range m.AVCConfig.SequenceParameterSets {
			sps = append(sps, set.NALUnit)
		}
		for _, set := range m.AVCConfig.PictureParameterSets {
			pps = append(pps, set.NALUnit)
		}
		return in.describePictures(sps, pps)
	case message.VideoTypeAU:
		offset := milliseconds(m.PTSDelta)
		if offset >= milliseconds(1<<23*time.Millisecond) { // 24 bits with a sign
			offset -= milliseconds(1 << 24 * time.Millisecond)
		}
		if in.pictures == nil {
			return nil
		}
		return in.picture(in.unwrap(m.DTS), offset, m.AU)
	case message.VideoTypeEOS:
	}
	return nil
}

func (in *intake) rtmpAudio(m *message.Audio) error {
	if m.Codec != message.CodecMPEG4Audio {
		return errCodec
	}
	if m.AACType == message.AudioAACTypeConfig {
		if m.AACConfig == nil {
			return nil
		}
		config, err := m.AACConfig.Marshal()
		if err != nil {
			return fmt.Errorf("%w: AAC: %w", errCodec, err)
		}
		return in.describeSound(config, int(m.AACConfig.Type), m.AACConfig.SampleRate, channelsOf(m.AACConfig.ChannelConfig))
	}
	return in.aac(in.unwrap(m.DTS), m.AU)
}

// channelsOf returns the number of channels of a configuration (ISO/IEC 14496-3 table 1.19), or 0
// if the table has no entry.
func channelsOf(config uint8) int {
	switch {
	case config == 7:
		return 8
	case config <= 6:
		return int(config)
	}
	return 0
}
