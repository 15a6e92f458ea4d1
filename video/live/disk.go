package live

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
)

// disk is a stream's directory.
//
//	DIR/stream.json       the specification, a record
//	DIR/log               lines of JSON, each an entry: first the numbers never to be used again,
//	                      then a line for each epoch and each finished segment
//	DIR/TRACK-NUMBER.m4s  a segment, its parts one after another
//
// A segment is finished once the log has its line. After a crash the whole parts of a segment
// without a line still count, since viewers may have fetched them.
type disk struct {
	dir   string
	lines *os.File
	torn  bool                // the log may end in a partial line
	count int                 // lines in the log
	files map[string]*os.File // segments being written, by track
	room  func(bytes int64) error
}

// entry is a line of the log.
type entry struct {
	Epochs int    `json:"epochs,omitempty"` // number of the next epoch
	Least  int64  `json:"least,omitempty"`  // number of the first segment of a new track
	Epoch  *epoch `json:"epoch,omitempty"`

	Track       string `json:"t,omitempty"`
	Next        int64  `json:"next,omitempty"`  // the track's next segment number
	First       int64  `json:"first,omitempty"` // number of the track's first segment in playlists
	Number      int64  `json:"n,omitempty"`
	Of          int    `json:"of,omitempty"` // number of the epoch
	Start       int64  `json:"s,omitempty"`
	Duration    int64  `json:"d,omitempty"`
	Size        int64  `json:"b,omitempty"`
	Independent bool   `json:"i,omitempty"`
}

func (s *segment) entry() entry {
	return entry{Track: s.track.Name, Number: s.number, Of: s.epoch.Number, Start: s.start, Duration: s.duration, Size: s.size, Independent: s.independent}
}

// path returns the name of a segment's file.
func (d *disk) path(track string, number int64) string {
	return filepath.Join(d.dir, track+"-"+strconv.FormatInt(number, 10)+".m4s")
}

// write appends a part to a segment's file. The first part creates the file.
func (d *disk) write(track string, number, offset int64, b []byte) (err error) {
	if err := d.room(int64(len(b))); err != nil {
		return err
	}
	f := d.files[track]
	if offset == 0 {
		if f != nil {
			_ = f.Close() // the segment was never finished
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

// finish closes a segment's file and logs the segment as finished.
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
	if err != nil {
		return err
	}
	if d.torn { // keeps the partial line apart from the new line
		b = append([]byte{'\n'}, b...)
	}
	_, err = d.lines.Write(append(b, '\n'))
	d.torn = err != nil
	d.count++
	return err
}

// remove deletes segments' files.
func (d *disk) remove(gone []*segment) error {
	var err error
	for _, s := range gone {
		if e := os.Remove(d.path(s.track.Name, s.number)); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// rewrite replaces the log by a shorter log of the current state.
func (d *disk) rewrite(l *left) error {
	path := filepath.Join(d.dir, "log")
	count, err := l.write(path + ".new")
	if err != nil {
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
		_ = d.lines.Close() // the new log has replaced this file
	}
	d.lines, d.count, d.torn = to, count, false
	return nil
}

// write writes the state as a log and returns the number of entries.
func (l *left) write(path string) (count int, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriter(f)
	lines := json.NewEncoder(w)
	known := map[int]bool{}
	add := func(e entry) {
		count++
		err = errors.Join(err, lines.Encode(e))
	}
	add(entry{Epochs: l.epochs, Least: l.least})
	for name, r := range l.rows {
		if r.next > 0 {
			add(r.entry(name))
		}
		for _, s := range r.segments {
			if !known[s.epoch.Number] {
				known[s.epoch.Number] = true
				add(entry{Epoch: s.epoch})
			}
			add(s.entry())
		}
	}
	if l.current != nil && !known[l.current.Number] {
		add(entry{Epoch: l.current})
	}
	return count, errors.Join(err, w.Flush(), f.Close())
}

// entry holds the numbers of the row's next and first listed segment.
func (r *row) entry(track string) entry {
	e := entry{Track: track, Next: r.next, First: r.next}
	if r.listed < len(r.segments) {
		e.First = r.segments[r.listed].number
	}
	if r.open != nil {
		e.Next = r.open.number // the segment may never be finished
	}
	return e
}

func (d *disk) close() error {
	var err error
	for track, f := range d.files {
		err = errors.Join(err, f.Close())
		delete(d.files, track)
	}
	return errors.Join(err, d.lines.Close())
}

// left is the state of a stream as read from its directory.
type left struct {
	current *epoch // the last epoch
	epochs  int    // number of the next epoch
	least   int64  // number of the first segment of a new track
	rows    map[string]*row
	lost    bool // the log is missing and its numbers are unknown
}

// Bounds for the values in a log. Values outside are ignored.
const (
	mostNumber  = 1 << 48
	mostEpoch   = 1 << 31
	mostApart   = 1 << 16 // epochs between two neighbouring segments
	mostSeconds = 1 << 31 // seconds in any time
)

// shelf is the raw state of a track: log entries and files, by segment number.
type shelf struct {
	entries     map[int64]entry
	files       map[int64]int64 // bytes
	next, first int64
}

// open reads a stream's directory, drops unreadable parts and rewrites the log. It never reuses a
// number that may have been used before. age is the time since the stream's creation.
func (d *disk) open(age time.Duration) (*left, error) {
	d.files = map[string]*os.File{}
	epochs, shelves, l, err := d.read()
	if err != nil {
		return nil, err
	}
	if l.lost { // on average at most one segment of each track and one epoch begins per second
		l.least = int64(max(age, 0) / time.Second)
		l.epochs = int(l.least)
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	if err := shelves.addFiles(entries); err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for name, of := range shelves {
		of.next = max(of.next, l.least)
		r := d.readRow(epochs, name, of)
		l.rows[name] = r
		for _, s := range r.segments {
			keep[filepath.Base(d.path(name, s.number))] = true
		}
	}
	if err := d.drop(entries, keep); err != nil {
		return nil, err
	}
	return l, d.rewrite(l)
}

// drop removes the segments' files outside of keep.
func (d *disk) drop(entries []os.DirEntry, keep map[string]bool) error {
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".m4s") && !keep[e.Name()] {
			if err := os.Remove(filepath.Join(d.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

type shelves map[string]*shelf

func (all shelves) of(track string) *shelf {
	if all[track] == nil {
		all[track] = &shelf{entries: map[int64]entry{}, files: map[int64]int64{}}
	}
	return all[track]
}

// addFiles takes the sizes of the files TRACK-NUMBER.m4s.
func (all shelves) addFiles(entries []os.DirEntry) error {
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".m4s")
		i := strings.LastIndexByte(base, '-')
		if !ok || i < 1 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if n, err := strconv.ParseInt(base[i+1:], 10, 64); err == nil && n >= 0 && n < mostNumber {
			all.of(base[:i]).files[n] = info.Size()
		}
	}
	return nil
}

// read parses the log.
func (d *disk) read() (map[int]*epoch, shelves, *left, error) {
	epochs, all, l := map[int]*epoch{}, shelves{}, &left{rows: map[string]*row{}}
	b, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if l.lost = errors.Is(err, os.ErrNotExist); err != nil && !l.lost {
		return nil, nil, nil, err
	}
	for line := range bytes.Lines(b) {
		e, ok := parse(line)
		if !ok {
			continue
		}
		if of := e.Epoch; of != nil {
			if of.sane() {
				epochs[of.Number] = of
				l.add(of)
			}
			continue
		}
		l.count(e)
		if e.ofTrack() {
			all.of(e.Track).add(e, l)
		}
	}
	return epochs, all, l, nil
}

// sane reports whether an epoch of the log is usable.
func (e *epoch) sane() bool {
	return e.Number >= 0 && e.Number < mostEpoch && e.Start >= 0 && e.Start <= mostSeconds*time.Second && e.check() == nil
}

// ofTrack reports whether the entry is of a track, with numbers in their limits.
func (e *entry) ofTrack() bool {
	return e.Track != "" && e.Number >= 0 && e.Number < mostNumber && e.Of >= 0 && e.Of < mostEpoch
}

// count takes the numbers of an entry.
func (l *left) count(e entry) {
	if e.Epochs > 0 && e.Epochs <= mostEpoch {
		l.epochs = max(l.epochs, e.Epochs)
	}
	if e.Least > 0 && e.Least < mostNumber {
		l.least = max(l.least, e.Least)
	}
}

// add takes an epoch of the log.
func (l *left) add(e *epoch) {
	if l.current == nil || e.Number >= l.current.Number {
		l.current = e
	}
	l.epochs = max(l.epochs, e.Number+1)
}

// add takes a track's entry: the next number, or a segment.
func (s *shelf) add(e entry, l *left) {
	if e.Next > 0 {
		if e.Next <= mostNumber {
			s.next, s.first = max(s.next, e.Next), max(s.first, min(e.First, e.Next))
		}
		return
	}
	l.epochs = max(l.epochs, e.Of+1)
	s.next = max(s.next, e.Number+1)
	s.entries[e.Number] = e
}

// parse decodes a line of the log, after the remains of a torn line if any.
func parse(line []byte) (e entry, ok bool) {
	for {
		if json.Unmarshal(line, &e) == nil {
			return e, true
		}
		e = entry{}
		i := bytes.Index(line[min(1, len(line)):], []byte(`{"`))
		if i < 0 {
			return e, false
		}
		line = line[i+1:]
	}
}

// readRow returns a track's segments: the last run of consecutive numbers.
func (d *disk) readRow(epochs map[int]*epoch, name string, of *shelf) *row {
	r := &row{next: of.next}
	numbers := slices.Sorted(maps.Keys(of.files))
	for _, n := range numbers {
		var s *segment
		if e, ok := of.entries[n]; ok && epochs[e.Of] != nil {
			s = e.segment(epochs[e.Of], of.files[n])
		} else {
			s = d.recover(epochs, name, n)
		}
		if s == nil {
			continue
		}
		if !r.follows(s) {
			r.segments = nil // playlists cannot list segments before a gap
		}
		r.segments = append(r.segments, s)
		r.next = max(r.next, n+1)
	}
	if n := len(r.segments); n > 0 && r.segments[n-1].number+1 < r.next {
		r.segments = nil
	}
	for r.listed < len(r.segments) && r.segments[r.listed].number < of.first {
		r.listed++
	}
	return r
}

// follows reports whether s continues the row's last segment.
func (r *row) follows(s *segment) bool {
	if len(r.segments) == 0 {
		return true
	}
	last := r.segments[len(r.segments)-1]
	epochs := s.epoch.Number - last.epoch.Number
	return s.number == last.number+1 && epochs >= 0 && epochs <= mostApart && s.begin() >= last.end()-time.Millisecond
}

// segment returns the entry's segment, or nil if the entry is invalid or the file is shorter than
// the segment.
func (e *entry) segment(of *epoch, size int64) *segment {
	t := of.track(e.Track)
	if t == nil || e.Size < 1 || size < e.Size {
		return nil
	}
	s := &segment{number: e.Number, epoch: of, track: t, start: e.Start, duration: e.Duration, size: e.Size, independent: e.Independent}
	if !s.sane() {
		return nil
	}
	return s
}

// sane reports whether a segment's times are within bounds.
func (s *segment) sane() bool {
	return s.start >= 0 && s.start/s.track.TimeScale < mostSeconds && s.duration > 0 && s.duration/s.track.TimeScale < mostSeconds
}

// recover rebuilds a segment without an entry from its file: the process ended while writing the
// segment, or the line is lost. The result is nil if the file has no whole part.
func (d *disk) recover(epochs map[int]*epoch, name string, number int64) *segment {
	f, err := os.OpenFile(d.path(name, number), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	s := &segment{number: number}
	for {
		traf, size, err := readFragment(f, s.size)
		if err != nil {
			break
		}
		if s.epoch == nil {
			s.start = int64(traf.Tfdt.BaseMediaDecodeTime())
			flags, _ := traf.Trun.FirstSampleFlags()
			s.independent = mp4.IsSyncSampleFlags(flags) || mp4.IsSyncSampleFlags(traf.Trun.Samples[0].Flags)
			if !s.place(epochs, name) {
				return nil
			}
		}
		s.duration += int64(traf.Trun.Duration(traf.Tfhd.DefaultSampleDuration))
		s.size += size
	}
	if s.epoch == nil || !s.sane() || f.Truncate(s.size) != nil {
		return nil
	}
	return s
}

// place finds the segment's epoch by the segment's start: the last epoch beginning no later.
func (s *segment) place(epochs map[int]*epoch, name string) bool {
	for _, of := range epochs {
		t := of.track(name)
		if t == nil || s.epoch != nil && s.epoch.Number > of.Number {
			continue
		}
		if s.start >= 0 && s.start/t.TimeScale < mostSeconds && units(s.start, t.TimeScale) >= of.Start-time.Millisecond {
			s.epoch, s.track = of, t
		}
	}
	return s.epoch != nil
}

// readSizes returns the sizes of moof and mdat at an offset of a file of size bytes.
func readSizes(f *os.File, at, size int64) (sizes [2]int64, err error) {
	for i, kind := range []string{"moof", "mdat"} {
		var head [8]byte
		if _, err := f.ReadAt(head[:], at+sizes[0]); err != nil {
			return sizes, err
		}
		sizes[i] = int64(binary.BigEndian.Uint32(head[:]))
		if string(head[4:]) != kind || sizes[i] < 8 || at+sizes[0]+sizes[1] > size {
			return sizes, fmt.Errorf("no fragment at byte %d", at)
		}
	}
	return sizes, nil
}

// readFragment reads the moof at an offset. The size includes the mdat.
func readFragment(f *os.File, at int64) (*mp4.TrafBox, int64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	sizes, err := readSizes(f, at, info.Size())
	if err != nil {
		return nil, 0, err
	}
	box, err := mp4.DecodeBox(0, io.NewSectionReader(f, at, sizes[0]))
	if err != nil {
		return nil, 0, err
	}
	moof, ok := box.(*mp4.MoofBox)
	if !ok || moof.Traf == nil || moof.Traf.Tfhd == nil || moof.Traf.Tfdt == nil || moof.Traf.Trun == nil || len(moof.Traf.Trun.Samples) == 0 {
		return nil, 0, fmt.Errorf("no fragment at byte %d", at)
	}
	return moof.Traf, sizes[0] + sizes[1], nil
}
