package origin

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/packager"
	"github.com/fre-engine/fre/video/playlist"
)

// packing converts a stored segment to another container or encrypts a stored segment.
type packing struct {
	shelf *shelf
	row   *row
	n     int // number of the segment, from 1
	form  playlist.Form

	pages    []byte // memory-mapped pages around the segment
	segment  []byte
	fragment *packager.Fragment // nil: the segment is encrypted as a whole
}

// fragments is a pool of unused fragments.
var fragments = sync.Pool{New: func() any { return new(packager.Fragment) }}

// packed returns the item of a segment to be made on demand.
func (s *shelf) packed(r *row, n int, form playlist.Form) item {
	it := item{kind: r.kind, keep: forever, tag: r.tags[n-1], by: &packing{shelf: s, row: r, n: n, form: form}}
	if form == playlist.TS {
		it.kind = "video/mp2t"
		it.tag = it.tag[:len(it.tag)-1] + `-ts"`
	}
	return it
}

// textInTS returns the text NAME.vtt with a map from its times to time stamps of MPEG-TS (RFC
// 8216bis section 3.1.4).
func (s *shelf) textInTS(name []byte) (it item, ok bool) {
	base, ok := bytes.CutSuffix(name, []byte(".vtt"))
	r := s.rows[string(base)]
	if !ok || r == nil || r.of.Kind != "text" {
		return item{}, false
	}
	return item{kind: "text/vtt; charset=utf-8", keep: forever, tag: `"` + s.asset.Made + "-" + r.of.Name + `-ts.vtt"`, by: &stamping{shelf: s, row: r}}, true
}

// stamping adds timeStamps to a stored text.
type stamping struct {
	shelf *shelf
	row   *row
	file  *os.File
	size  int64
}

// timeStamps is inserted after a text's first line.
var timeStamps = fmt.Sprintf("X-TIMESTAMP-MAP=MPEGTS:%d,LOCAL:00:00:00.000\n", packager.Zero)

// open implements maker.
func (t *stamping) open() (most int64, err error) {
	if t.file, err = t.shelf.open(t.row.of.Name + ".vtt"); err != nil {
		return 0, err
	}
	info, err := t.file.Stat()
	if err != nil {
		return 0, err
	}
	t.size = info.Size()
	return t.size + int64(len("\n")+len(timeStamps)), nil
}

// append implements maker.
func (t *stamping) append(dst []byte) ([]byte, error) {
	text := make([]byte, t.size)
	if _, err := t.file.ReadAt(text, 0); err != nil {
		return nil, err
	}
	head, cues, _ := bytes.Cut(text, []byte{'\n'})
	dst = append(append(dst, head...), '\n')
	return append(append(dst, timeStamps...), cues...), nil
}

// close implements maker. The shelf closes the file.
func (t *stamping) close() error { return nil }

// protection returns the encryption of an asset under CBCS.
func protection(a *asset.Asset) *packager.Protection {
	return &packager.Protection{Key: a.Secret.Key, KeyID: a.Secret.KeyID, IV: a.Secret.IV}
}

// sampleAES returns the sample encryption of an asset's transport streams, or nil.
func sampleAES(a *asset.Asset) *packager.SampleAES {
	if a.Protection != asset.CBCS {
		return nil
	}
	return &packager.SampleAES{Key: a.Secret.Key, IV: a.Secret.IV}
}

// open implements maker: it maps the segment into memory.
func (p *packing) open() (most int64, err error) {
	f, err := p.shelf.open(p.row.of.Name + ".mp4")
	if err != nil {
		return 0, err
	}
	of := &p.row.of.Segments[p.n-1]
	into := of.Offset % int64(os.Getpagesize())
	p.pages, err = unix.Mmap(int(f.Fd()), of.Offset-into, int(of.Size+into), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	p.segment = p.pages[into:]
	if p.form == playlist.MP4 && p.shelf.asset.Protection == asset.AES128 {
		return packager.AES128Size(of.Size), nil
	}
	track, err := p.row.track(f)
	if err != nil {
		return 0, err
	}
	p.fragment = fragments.Get().(*packager.Fragment) // the pool holds fragments only
	if err := p.fragment.Read(track, p.segment); err != nil {
		return 0, err
	}
	if p.form == playlist.MP4 {
		return p.fragment.CBCSSize(), nil
	}
	most = p.fragment.TSSize(sampleAES(p.shelf.asset))
	if p.shelf.asset.Protection == asset.AES128 {
		most = packager.AES128Size(most)
	}
	return most, nil
}

// append implements maker.
func (p *packing) append(dst []byte) (b []byte, err error) {
	a := p.shelf.asset
	switch {
	case p.fragment == nil:
		b = p.segment
	case p.form == playlist.TS:
		b, err = p.fragment.AppendTS(dst, sampleAES(a))
	default:
		return p.fragment.AppendCBCS(dst, protection(a))
	}
	if err != nil || a.Protection != asset.AES128 {
		return b, err
	}
	var iv [16]byte // without an IV in the playlist, the segment's sequence number (RFC 8216bis section 5.2)
	binary.BigEndian.PutUint64(iv[8:], uint64(p.n-1))
	return packager.AppendAES128(dst, b, (*[16]byte)(&a.Secret.Key), &iv), nil
}

// close implements maker.
func (p *packing) close() error {
	if p.pages == nil {
		return nil
	}
	err := unix.Munmap(p.pages)
	if p.fragment != nil {
		fragments.Put(p.fragment)
	}
	p.pages, p.segment, p.fragment = nil, nil, nil
	return os.NewSyscallError("munmap", err)
}

// track parses the row's initialisation segment, stored in f, once.
func (r *row) track(f *os.File) (*packager.Track, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read != nil {
		return r.read, nil
	}
	b, err := r.initialization(f)
	if err == nil {
		r.read, err = packager.ReadTrack(b)
	}
	return r.read, err
}

func (r *row) initialization(f *os.File) ([]byte, error) {
	b := make([]byte, r.of.Init)
	_, err := f.ReadAt(b, 0)
	return b, err
}

// protectedInit returns the initialisation segment of an encrypted row.
func (s *shelf) protectedInit(r *row, f *os.File) (item, error) {
	b, err := r.initialization(f)
	if err == nil {
		b, err = packager.AppendCBCSInit(nil, b, protection(s.asset))
	}
	return item{kind: r.kind, keep: forever, tag: r.init, plain: b, size: int64(len(b))}, err
}

// key returns the item of a protected asset's key.
func (s *shelf) key() item {
	return item{kind: "application/octet-stream", keep: never, tag: `"` + s.asset.Made + `-key"`, plain: s.asset.Secret.Key[:], size: 16}
}

// mostLicense is the longest license request, in bytes.
const mostLicense = 64 << 10

// license answers a license request (W3C Encrypted Media Extensions, section 9.1.3).
func (o *Origin) license(x *exchange, s *shelf) {
	var q struct {
		IDs []string `json:"kids"`
	}
	b, err := io.ReadAll(io.LimitReader(x.Body, mostLicense+1))
	if err != nil {
		x.Abort()
		return
	}
	if err := json.Unmarshal(b, &q); err != nil || len(b) > mostLicense {
		o.refuse(x, http.StatusBadRequest, api.CodeBadRequest, `the body is no request for a license: {"kids": [...], "type": "temporary"}`)
		return
	}
	type key struct {
		Type string `json:"kty"`
		ID   string `json:"kid"`
		Key  string `json:"k"`
	}
	license := struct {
		Keys []key  `json:"keys"`
		Type string `json:"type"`
	}{Keys: []key{}, Type: "temporary"}
	own := base64.RawURLEncoding.EncodeToString(s.asset.Secret.KeyID[:])
	if slices.Contains(q.IDs, own) {
		license.Keys = append(license.Keys, key{Type: "oct", ID: own, Key: base64.RawURLEncoding.EncodeToString(s.asset.Secret.Key[:])})
	}
	b, _ = json.Marshal(license) // of strings
	x.Set("Content-Type", "application/json")
	x.Set("Cache-Control", never)
	o.count("license", http.StatusOK)
	_ = x.Send(http.StatusOK, b)
}
