package service

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/Eyevinn/mp4ff/hevc"
	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// part is a piece of a rendition in a file of Service.keep, from byte at after the file's head.
type part struct {
	file string
	at   int64
	made media.Made
}

// publish writes a file of the asset: size bytes of a job's file, from byte at after its head.
func (w *work) publish(name, job string, at, size int64) error {
	from, err := os.Open(job)
	if err != nil {
		return err
	}
	defer from.Close()
	behind, err := kept(job, &struct{}{})
	if err != nil {
		return err
	}
	if _, err := from.Seek(behind+at, io.SeekStart); err != nil {
		return err
	}
	return write(w.library.Path(w.id, name), func(to *os.File) error {
		return w.copy(to, from, size)
	})
}

// assemble writes a rendition's file from parts in order and fills in r's segments. All parts
// must have the same initialisation segment.
func (w *work) assemble(r *asset.Rendition, parts []part) error {
	err := write(w.library.Path(w.id, r.Name+".mp4"), func(to *os.File) error { return w.join(to, r, parts) })
	if err == nil && len(r.Segments) == 0 {
		err = errors.New("nothing of it could be decoded")
	}
	if err != nil {
		return fmt.Errorf("assemble %s: %w", r.Name, err)
	}
	r.BitRate, _ = r.Rates()
	return nil
}

func (s *Service) join(to *os.File, r *asset.Rendition, parts []part) error {
	j := joining{Service: s, to: to, r: r}
	for _, p := range parts {
		if err := j.add(p); err != nil {
			return err
		}
	}
	return nil
}

// joining is the state of a rendition that is written part by part.
type joining struct {
	*Service
	to   *os.File
	r    *asset.Rendition
	init []byte // the initialisation segment of all parts
	end  int64  // of the written bytes
	read fragmentReader
}

// add writes the segments of a part, and first the initialisation segment of the first part.
func (j *joining) add(p part) error {
	from, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer from.Close()
	behind, err := kept(p.file, &struct{}{})
	if err != nil {
		return err
	}
	at := behind + p.at
	if err := j.addInit(from, at, p.made.Init); err != nil {
		return err
	}
	at += int64(p.made.Init)
	for _, n := range p.made.Segments {
		size, err := j.addSegment(from, at, int64(n))
		if err != nil {
			return err
		}
		at += size
	}
	return nil
}

// addInit writes the first initialisation segment, and refuses a different one.
func (j *joining) addInit(from *os.File, at int64, size int) error {
	if size < 1 || size > 1<<20 {
		return fmt.Errorf("an initialisation segment of %d bytes", size)
	}
	own := make([]byte, size)
	if _, err := from.ReadAt(own, at); err != nil {
		return err
	}
	if j.init != nil {
		if !bytes.Equal(j.init, own) {
			return errors.New("its parts are encoded in different ways")
		}
		return nil
	}
	j.init, j.r.Init = own, int64(len(own))
	if err := j.read.init(j.r, own); err != nil {
		return err
	}
	if _, err := j.to.Write(own); err != nil {
		return err
	}
	j.end = j.r.Init
	return nil
}

// addSegment writes the segment of about n bytes at an offset of a file, and returns its size.
func (j *joining) addSegment(from *os.File, at, n int64) (int64, error) {
	part, err := j.read.fragment(from, at, n)
	if err != nil {
		return 0, fmt.Errorf("segment %d: %w", len(j.r.Segments)+1, err)
	}
	if part.Offset = asset.Place(j.end, part.Size); part.Offset > j.end {
		if _, err := j.to.Write(asset.AppendFree(nil, part.Offset-j.end)); err != nil {
			return 0, err
		}
	}
	if _, err := from.Seek(at, io.SeekStart); err != nil {
		return 0, err
	}
	if err := j.copy(j.to, from, part.Size); err != nil {
		return 0, err
	}
	j.r.Segments = append(j.r.Segments, part)
	j.end = part.Offset + part.Size
	return part.Size, nil
}

// fragmentReader parses a rendition's initialisation segment and fragments.
type fragmentReader struct {
	trex *mp4.TrexBox
}

// init parses an initialisation segment and fills in r's time scale, shift and codec.
func (f *fragmentReader) init(r *asset.Rendition, b []byte) error {
	file, err := mp4.DecodeFile(bytes.NewReader(b))
	if err != nil {
		return err
	}
	if file.Init == nil || file.Init.Moov == nil || len(file.Init.Moov.Traks) != 1 || file.Init.Moov.Mvex == nil || file.Init.Moov.Mvex.Trex == nil {
		return errors.New("no initialisation segment of one track")
	}
	f.trex = file.Init.Moov.Mvex.Trex
	track := file.Init.Moov.Trak
	r.TimeScale = int(track.Mdia.Mdhd.Timescale)
	if e := track.Edts; e != nil && len(e.Elst) == 1 && len(e.Elst[0].Entries) == 1 {
		r.Shift = e.Elst[0].Entries[0].MediaTime
	}
	r.Codec, err = codecOf(track.Mdia.Minf.Stbl.Stsd)
	return err
}

// codecOf returns the codec's name in RFC 6381.
func codecOf(stsd *mp4.StsdBox) (string, error) {
	switch {
	case stsd.AvcX != nil:
		c := stsd.AvcX.AvcC
		return fmt.Sprintf("avc1.%02x%02x%02x", c.AVCProfileIndication, c.ProfileCompatibility, c.AVCLevelIndication), nil
	case stsd.HvcX != nil && stsd.HvcX.HvcC != nil:
		return hevcString(stsd.HvcX.HvcC), nil
	case stsd.Av01 != nil && stsd.Av01.Av1C != nil:
		return av1String(stsd.Av01.Av1C), nil
	case stsd.Mp4a != nil:
		return "mp4a.40.2", nil
	}
	return "", errors.New("a codec that is not known")
}

// hevcString returns the codecs parameter of HEVC (ISO/IEC 14496-15, E.3), such as
// hvc1.1.6.L93.90.
func hevcString(c *mp4.HvcCBox) string {
	return hevc.CodecString("hvc1", &hevc.SPS{ProfileTierLevel: hevc.ProfileTierLevel{
		GeneralProfileSpace: c.GeneralProfileSpace, GeneralTierFlag: c.GeneralTierFlag, GeneralProfileIDC: c.GeneralProfileIDC,
		GeneralProfileCompatibilityFlags: c.GeneralProfileCompatibilityFlags, GeneralConstraintIndicatorFlags: c.GeneralConstraintIndicatorFlags,
		GeneralLevelIDC: c.GeneralLevelIDC,
	}})
}

// av1String returns the codecs parameter of AV1 with 8 or 10 bits (AV1 Codec ISO Media File
// Format Binding, 5), such as av01.0.04M.08.
func av1String(c *mp4.Av1CBox) string {
	return fmt.Sprintf("av01.%d.%02d%c.%02d", c.SeqProfile, c.SeqLevelIdx0, "MH"[c.SeqTier0&1], 8+2*c.HighBitdepth)
}

// fragment reads the duration of the fragment of size bytes at byte at, and the end of its first
// sample.
func (f *fragmentReader) fragment(from io.ReaderAt, at, size int64) (s asset.Segment, err error) {
	box, err := mp4.DecodeBox(0, io.NewSectionReader(from, at, size))
	if err != nil {
		return s, err
	}
	moof, ok := box.(*mp4.MoofBox)
	if !ok || moof.Traf == nil || moof.Traf.Trun == nil || len(moof.Traf.Trun.Samples) == 0 {
		return s, errors.New("no fragment")
	}
	trun := moof.Traf.Trun
	trun.AddSampleDefaultValues(moof.Traf.Tfhd, f.trex)
	for _, sample := range trun.Samples {
		s.Duration += int64(sample.Dur)
	}
	s.Size = size
	s.Key = int64(trun.DataOffset) + int64(trun.Samples[0].Size)
	if s.Key > size || s.Duration <= 0 {
		return s, errors.New("a fragment that breaks off")
	}
	return s, nil
}
