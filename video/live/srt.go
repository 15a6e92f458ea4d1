package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"
	"github.com/bluenviron/mediacommon/v2/pkg/formats/mpegts"
	"github.com/bluenviron/mediacommon/v2/pkg/formats/mpegts/codecs"
	srt "github.com/datarhei/gosrt"
)

// errPassphrase refuses an encrypting publisher.
var errPassphrase = errors.New("the publisher sets an SRT passphrase, and this service has none: publish without one")

// ListenSRT accepts publishers at srt://HOST:PORT?streamid=NAME:KEY, with MPEG-TS, until the
// server is closed, and returns the listening address at once. H.264 and AAC are passed on
// unchanged.
func (v *Server) ListenSRT(address string) (net.Addr, error) {
	config := srt.DefaultConfig()
	config.ConnectionTimeout = timeToPublish
	config.PeerIdleTimeout = timeToSend
	l, err := srt.Listen("srt", address, config)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(v.ctx, l.Close) // ends Accept2
	places := make(chan struct{}, mostPublishers)
	if !v.Go(func() {
		defer l.Close()
		defer stop()
		for {
			// The library parses packets of unknown senders in Accept2: guard against its panics.
			var asked srt.ConnRequest
			parsed := false
			err := guard(func() (err error) {
				asked, err = l.Accept2()
				parsed = true
				return err
			})
			if !parsed {
				v.cfg.Log.Info("a publisher has gone", "why", err)
				continue
			}
			if err != nil {
				if v.ctx.Err() == nil {
					v.cfg.Log.Error("stopped listening for publishers", "error", err)
				}
				return
			}
			c := v.admitSRT(asked)
			if c == nil {
				continue
			}
			select {
			case places <- struct{}{}:
			default:
				asked.Reject(srt.REJX_OVERLOAD)
				continue
			}
			if !v.Go(func() {
				defer func() { <-places }()
				v.publishSRT(asked, c)
			}) {
				asked.Reject(srt.REJ_CLOSE)
				return
			}
		}
	}) {
		l.Close()
		return nil, errClosed
	}
	v.listening("srt", l.Addr())
	return l.Addr(), nil
}

// admitSRT returns the publisher's stream. It rejects a connection without the stream's key, or with
// encryption, and returns nil.
func (v *Server) admitSRT(asked srt.ConnRequest) *channel {
	name, key, _ := strings.Cut(asked.StreamId(), ":")
	c, err := v.admit(name, key)
	reason := srt.REJX_UNAUTHORIZED
	if err == nil && asked.IsEncrypted() { // ffmpeg reports this reason as "password required or unexpected"
		err, reason = errPassphrase, srt.REJ_UNSECURE
		c.refused(err)
	}
	if err != nil {
		v.cfg.Log.Info("a publisher has gone", "publisher", asked.RemoteAddr().String(), "stream", name, "why", err)
		asked.Reject(reason)
		return nil
	}
	return c
}

// publishSRT serves a publisher's connection.
func (v *Server) publishSRT(asked srt.ConnRequest, c *channel) {
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	conn, err := asked.Accept()
	if err != nil {
		v.cfg.Log.Info("a publisher has gone", "publisher", asked.RemoteAddr().String(), "why", err)
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the read under way
	defer stop()
	log := v.cfg.Log.With("publisher", conn.RemoteAddr().String(), "stream", c.Name)
	release, err := c.claim(ctx, conn.RemoteAddr().String(), cancel)
	if err == nil {
		log.Info("a publisher has come")
		err = guard(func() error { return receiveTS(conn, &intake{Stream: c.Stream, ctx: ctx}) })
		if ctx.Err() != nil {
			err = errReplaced
		}
		release(err)
	}
	log.Info("a publisher has gone", "why", err)
}

// metered counts a publisher's bytes. Read fails after too many bytes without an access unit.
type metered struct {
	io.Reader
	partial int
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if m.partial += n; m.partial > mostPartial {
		return 0, fmt.Errorf("%d bytes that make no access unit", m.partial)
	}
	return n, err
}

// taken accounts for an access unit of n bytes. The estimate is rough, since a unit's size on the
// wire is unknown.
func (m *metered) taken(n int) { m.partial = max(0, m.partial-n-n/4-1024) }

// receiveTS takes a publisher's MPEG-TS until the connection ends.
func receiveTS(from io.Reader, in *intake) error {
	m := &metered{Reader: from}
	r := &mpegts.Reader{R: m}
	if err := r.Initialize(); err != nil {
		return err
	}
	pictures, sounds := 0, 0
	var clock mpegts.TimeDecoder // a shared clock keeps the offset between the tracks
	clock.Initialize()
	for _, t := range r.Tracks() {
		switch codec := t.Codec.(type) {
		case *codecs.H264:
			pictures++
			r.OnDataH264(t, func(pts, dts int64, units [][]byte) error { return in.tsPicture(m, clock.Decode(dts), pts-dts, units) })
		case *codecs.MPEG4Audio:
			sounds++
			if err := in.tsConfig(codec); err != nil {
				return err
			}
			r.OnDataMPEG4Audio(t, func(pts int64, units [][]byte) error {
				return in.tsSound(m, clock.Decode(pts), codec.SampleRate, units)
			})
		default:
			return errCodec
		}
	}
	if pictures > 1 || sounds > 1 {
		return fmt.Errorf("%w: one track of each", errCodec)
	}
	return readTS(r)
}

// readTS reads until the connection ends.
func readTS(r *mpegts.Reader) error {
	for {
		if err := r.Read(); errors.Is(err, io.EOF) {
			return errGone
		} else if err != nil {
			return err
		}
	}
}

// tsConfig describes a track of AAC.
func (in *intake) tsConfig(codec *codecs.MPEG4Audio) error {
	config, err := codec.Marshal()
	if err != nil {
		return fmt.Errorf("%w: AAC: %w", errCodec, err)
	}
	return in.describeSound(config, int(codec.Type), codec.SampleRate, channelsOf(codec.ChannelConfig))
}

// tsSound takes successive frames of AAC, the first at a time of the epoch.
func (in *intake) tsSound(m *metered, at int64, rate int, units [][]byte) error {
	for n, unit := range units {
		m.taken(len(unit))
		if err := in.aac(at+int64(n)*1024*clockRate/int64(rate), unit); err != nil {
			return err
		}
	}
	return nil
}

// tsPicture takes an access unit. Parameter sets precede the key frames.
func (in *intake) tsPicture(m *metered, decode, offset int64, units [][]byte) error {
	var sps, pps [][]byte
	var unit []byte
	for _, u := range units {
		m.taken(len(u))
		if len(u) == 0 {
			continue
		}
		switch h264.NALUType(u[0] & 0x1f) { //nolint:exhaustive // the others are the picture
		case h264.NALUTypeSPS:
			sps = append(sps, u)
		case h264.NALUTypePPS:
			pps = append(pps, u)
		default:
			unit = append(unit, byte(len(u)>>24), byte(len(u)>>16), byte(len(u)>>8), byte(len(u)))
			unit = append(unit, u...)
		}
	}
	if len(sps) > 0 && len(pps) > 0 {
		in.size = 4
		if err := in.describePictures(sps[:1], pps[:1]); err != nil {
			return err
		}
	}
	if in.pictures == nil {
		return nil
	}
	// offset is the difference of two times of 33 bits: extend its sign.
	offset = (offset + 1<<32) & (1<<33 - 1)
	return in.picture(decode, offset-1<<32, unit)
}
