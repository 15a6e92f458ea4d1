package origin

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"

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

// onDemand returns the item of a segment to be made on demand.
func (s *shelf) onDemand(r *row, n int, form playlist.Form) item {
	it := item{kind: r.kind, keep: forever, tag: r.tags[n-1], by: &packing{shelf: s, row: r, n: n, form: form}}
	if form == playlist.TS {
		it.kind = "video/mp2t"
		it.tag = it.tag[:len(it.tag)-1] + `-ts"`
	}
	return it
}

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

// protectedInit returns the initialisation segment of an encrypted row.
func (s *shelf) protectedInit(r *row, f *os.File) (item, error) {
	b, err := r.initialization(f)
	if err == nil {
		b, err = packager.AppendCBCSInit(nil, b, protection(s.asset))
	}
	return item{kind: r.kind, keep: forever, tag: r.init, plain: b, size: int64(len(b))}, err
}
