package live

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
)

// disk is a stream's directory.
//
//	DIR/stream.json       what was asked for, a record
//	DIR/log               a line of JSON for each epoch and each finished segment, an entry
//	DIR/TRACK-NUMBER.m4s  a segment, its parts one after another
//
// A segment is finished once its line is there. Of one that a crash has cut short the whole
// parts count: some viewer may have them.
type disk struct {
	dir   string
	lines *os.File
	count int                 // of lines
	files map[string]*os.File // segments being written, by track
}

// entry is a line of the log.
type entry struct {
	Epoch *epoch `json:"epoch,omitempty"`

	Track       string `json:"t,omitempty"` // of a segment
	Number      int64  `json:"n,omitempty"`
	Of          int    `json:"of,omitempty"` // epoch
	Start       int64  `json:"s,omitempty"`
	Duration    int64  `json:"d,omitempty"`
	Size        int64  `json:"b,omitempty"`
	Independent bool   `json:"i,omitempty"`
}

func (s *segment) entry() entry {
	return entry{Track: s.track.Name, Number: s.number, Of: s.epoch.Number, Start: s.start, Duration: s.duration, Size: s.size, Independent: s.independent}
}

// path is a segment's file.
func (d *disk) path(track string, number int64) string {
	return filepath.Join(d.dir, track+"-"+strconv.FormatInt(number, 10)+".m4s")
}

// write appends a part to a segment's file, which the first one creates.
func (d *disk) write(track string, number, offset int64, b []byte) (err error) {
	f := d.files[track]
	if offset == 0 {
		if f != nil {
			_ = f.Close() // a segment that could not be finished
		}
		if f, err = os.Create(d.path(track, number)); err != nil {
			delete(d.files, track)
			return err
		}
		d.files[track] = f
	}
	_, err = f.WriteAt(b, offset)
	return err
}

// finish writes down that a segment is whole.
func (d *disk) finish(s *segment) error {
	f := d.files[s.track.Name]
	delete(d.files, s.track.Name)
	if err := f.Close(); err != nil {
		return err
	}
	return d.log(s.entry())
}

// log appends a line.
func (d *disk) log(e entry) error {
	b, err := json.Marshal(e)
	if err == nil {
		_, err = d.lines.Write(append(b, '\n'))
	}
	d.count++
	return err
}

// remove removes segments' files.
func (d *disk) remove(gone []*segment) error {
	var err error
	for _, s := range gone {
		err = errors.Join(err, os.Remove(d.path(s.track.Name, s.number)))
	}
	return err
}

// rewrite makes the log anew, of what is still there.
func (d *disk) rewrite(current *epoch, rows map[string]*row) error {
	path := filepath.Join(d.dir, "log")
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	lines := json.NewEncoder(w)
	known := map[int]bool{}
	count := 0
	add := func(e entry) {
		count++
		err = errors.Join(err, lines.Encode(e))
	}
	for _, r := range rows {
		for _, s := range r.segments {
			if !known[s.epoch.Number] {
				known[s.epoch.Number] = true
				add(entry{Epoch: s.epoch})
			}
			add(s.entry())
		}
	}
	if current != nil && !known[current.Number] {
		add(entry{Epoch: current})
	}
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return err
	}
	if err := asset.Commit(path+".new", path); err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if d.lines != nil {
		_ = d.lines.Close() // its place is taken
	}
	d.lines, d.count = to, count
	return nil
}

func (d *disk) close() error {
	var err error
	for track, f := range d.files {
		err = errors.Join(err, f.Close())
		delete(d.files, track)
	}
	return errors.Join(err, d.lines.Close())
}

// open reads what a directory has of a stream.
func (d *disk) open() (current *epoch, rows map[string]*row, err error) {
	d.files, rows = map[string]*os.File{}, map[string]*row{}
	b, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	epochs := map[int]*epoch{}
	rowOf := func(track string) *row {
		if rows[track] == nil {
			rows[track] = &row{}
		}
		return rows[track]
	}
	for line := range bytes.Lines(b) {
		var e entry
		if json.Unmarshal(line, &e) != nil {
			break // what a crash has torn: nothing comes behind it
		}
		if e.Epoch != nil {
			epochs[e.Epoch.Number] = e.Epoch
			if current == nil || e.Epoch.Number > current.Number {
				current = e.Epoch
			}
			continue
		}
		of := epochs[e.Of]
		if of == nil || of.track(e.Track) == nil {
			continue
		}
		r := rowOf(e.Track)
		r.next = max(r.next, e.Number+1)
		info, err := os.Stat(d.path(e.Track, e.Number))
		if err != nil || info.Size() < e.Size {
			r.segments = nil // what comes before a gap is not listed
			continue
		}
		r.segments = append(r.segments, &segment{number: e.Number, epoch: of, track: of.track(e.Track), start: e.Start, duration: e.Duration, size: e.Size, independent: e.Independent})
	}
	if current != nil {
		for i := range current.Tracks {
			t := &current.Tracks[i]
			if s := d.recover(current, t, rowOf(t.Name).next); s != nil {
				r := rowOf(t.Name)
				r.segments = append(r.segments, s)
				r.next++
			}
		}
	}
	keep := map[string]bool{}
	for _, r := range rows {
		for _, s := range r.segments {
			keep[filepath.Base(d.path(s.track.Name, s.number))] = true
		}
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".m4s") && !keep[e.Name()] {
			if err := os.Remove(filepath.Join(d.dir, e.Name())); err != nil {
				return nil, nil, err
			}
		}
	}
	return current, rows, d.rewrite(current, rows)
}

// recover is the segment of a number that was being written when the process ended; nil if
// there is none of it.
func (d *disk) recover(of *epoch, t *Track, number int64) *segment {
	f, err := os.OpenFile(d.path(t.Name, number), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	s := &segment{number: number, epoch: of, track: t}
	for {
		moof, size, err := readFragment(f, s.size)
		if err != nil {
			break
		}
		traf := moof.Traf
		if s.size == 0 {
			s.start = int64(traf.Tfdt.BaseMediaDecodeTime())
			flags, _ := traf.Trun.FirstSampleFlags()
			s.independent = mp4.IsSyncSampleFlags(flags) || mp4.IsSyncSampleFlags(traf.Trun.Samples[0].Flags)
		}
		s.duration += int64(traf.Trun.Duration(traf.Tfhd.DefaultSampleDuration))
		s.size += size
	}
	if s.duration == 0 || f.Truncate(s.size) != nil {
		return nil
	}
	return s
}

// readFragment reads the moof at an offset, and how long it is with its mdat.
func readFragment(f *os.File, at int64) (*mp4.MoofBox, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	section := io.NewSectionReader(f, at, info.Size()-at)
	box, err := mp4.DecodeBox(0, section)
	if err != nil {
		return nil, 0, err
	}
	moof, ok := box.(*mp4.MoofBox)
	if !ok || moof.Traf == nil || moof.Traf.Tfdt == nil || moof.Traf.Trun == nil || len(moof.Traf.Trun.Samples) == 0 {
		return nil, 0, fmt.Errorf("no fragment at byte %d", at)
	}
	data, err := mp4.DecodeBox(moof.Size(), section)
	if err != nil {
		return nil, 0, err
	}
	if data.Type() != "mdat" {
		return nil, 0, fmt.Errorf("a fragment without data at byte %d", at)
	}
	return moof, int64(moof.Size() + data.Size()), nil
}
