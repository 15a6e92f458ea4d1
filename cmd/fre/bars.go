package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

// partUnder is a part that is in progress, or has just ended.
type partUnder struct {
	api.Progress           // the last event of the part
	begun        time.Time // time of the first event
}

// took is the time since the part began.
func (p *partUnder) took(now time.Time) time.Duration { return now.Sub(p.begun) }

// label is the part's name for people.
func (p *partUnder) label() string {
	return command.Printable(strings.TrimRight(p.Step+" "+p.Name, " "))
}

// short is the label for a narrow terminal: a name says more than a step.
func (p *partUnder) short(width int) string {
	if width < 60 && p.Name != "" {
		return command.Printable(p.Name)
	}
	return p.label()
}

// amount formats n of the part's unit for people.
func (p *partUnder) amount(n int64) string {
	n = max(n, 0)
	if p.Unit == api.UnitBytes {
		return size(n)
	}
	return fmt.Sprint(n)
}

// tally follows events: the parts in progress and the finished parts.
type tally struct {
	parts []*partUnder // in progress, in order of their beginning
	whole int
	bytes int64 // of the finished parts
}

// add records an event and reports the change: begun for a new part, news for a new message.
func (t *tally) add(e api.Progress, now time.Time) (p *partUnder, begun, news bool) {
	i := slices.IndexFunc(t.parts, func(p *partUnder) bool { return p.Step == e.Step && p.Name == e.Name })
	if i < 0 {
		p, begun = &partUnder{begun: now}, true
		i = len(t.parts)
		t.parts = append(t.parts, p)
	} else {
		p = t.parts[i]
	}
	if e.End { // the last event may say less than the earlier events
		e.Done, e.Unit = cmp.Or(e.Done, e.Total, p.Total), cmp.Or(e.Unit, p.Unit)
	}
	news = p.Message != e.Message
	p.Progress = e
	if e.End || e.Step == stepWarning {
		t.parts = slices.Delete(t.parts, i, i+1)
	}
	if e.End && e.Name != "" { // an event without a name is a step, not a part
		t.whole++
		if e.Unit == api.UnitBytes {
			t.bytes += e.Done
		}
	}
	return p, begun, news
}

// stepWarning is the step of events about omitted parts.
const stepWarning = "warning"

// ended is the line that remains on the screen for a part.
func (p *partUnder) ended(now time.Time) string {
	line := p.label()
	if p.Message != "" && p.Message != "done" {
		line += " " + command.Printable(p.Message)
	}
	if p.Step == stepWarning {
		return line
	}
	if p.Done > 0 && p.Unit == api.UnitBytes {
		line += ", " + size(p.Done)
	}
	return line + ", " + brief(p.took(now))
}

// brief formats the duration of work for people.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// bars shows the parts in progress on a terminal, each on a separate line, with a sum below;
// finished parts scroll up. It reads the terminal's size for each frame, and puts the cursor after
// the last line: an interrupted program may leave it at this place.
//
//	packages numpy 2.1.0, 61.2MB, 1.3s
//	packages lxml 5.3.0   [=========>          ] 4.3MB/9.1MB 12MB/s
//	packages scipy 1.14.1 [=>                  ] 2.0MB/41MB 11MB/s
//	7 parts done, 112MB, 4s
type bars struct {
	out   io.Writer
	size  func() (width, height int)
	color bool

	stop chan struct{} // closed by end
	done sync.WaitGroup

	mu     sync.Mutex
	tally  tally
	begun  time.Time
	scroll []string       // lines to print above the bars
	told   map[string]int // lines printed above the bars, by step
	frame  []string       // the drawn lines
}

// frameEvery is the time between frames.
const frameEvery = 100 * time.Millisecond

// maxTold is the number of parts of one step that scroll up; further parts are only counted.
const maxTold = 20

// newBars starts to draw; end stops.
func newBars(out io.Writer, size func() (width, height int), color bool) *bars {
	b := &bars{out: out, size: size, color: color, stop: make(chan struct{}), begun: time.Now(), told: map[string]int{}}
	b.done.Go(func() {
		tick := time.NewTicker(frameEvery)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				b.draw(now)
			case <-b.stop:
				return
			}
		}
	})
	return b
}

// end removes the bars; lines that scrolled up stay.
func (b *bars) end() {
	close(b.stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	width, _ := b.size()
	b.printLocked(nil, width)
}

func (b *bars) event(e api.Progress, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, _, news := b.tally.add(e, now)
	warns := e.Step == stepWarning || news && strings.HasPrefix(e.Message, "warning")
	if !e.End && !warns {
		return
	}
	if b.told[e.Step]++; b.told[e.Step] <= maxTold || warns {
		b.scroll = append(b.scroll, p.ended(now))
	}
}

// draw updates the screen.
func (b *bars) draw(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	width, height := b.size()
	if frame := b.frameLocked(now, width, height); len(b.scroll) > 0 || !slices.Equal(frame, b.frame) {
		b.printLocked(frame, width)
	}
}

// printLocked prints the lines in scroll and replaces the last frame.
func (b *bars) printLocked(frame []string, width int) {
	if frame == nil && b.frame == nil && b.scroll == nil {
		return
	}
	var s strings.Builder
	up := 0
	for _, line := range b.frame { // in a narrower window a line takes more rows
		up += max(1, (columns(line)+width-1)/max(1, width))
	}
	if up > 0 {
		fmt.Fprintf(&s, "\x1b[%dA", up)
	}
	s.WriteString("\r\x1b[J")
	for _, line := range slices.Concat(b.scroll, frame) {
		s.WriteString(line + "\n")
	}
	_, _ = io.WriteString(b.out, s.String()) // the terminal may be gone
	b.scroll, b.frame = nil, frame
}

// frameLocked returns the lines below the scrolled ones: never more than fit with the cursor's own
// line.
func (b *bars) frameLocked(now time.Time, width, height int) []string {
	if len(b.tally.parts) == 0 && b.tally.whole == 0 {
		return nil
	}
	most := max(0, min(height-2, maxTold))
	shown := b.tally.parts[:min(len(b.tally.parts), most)]
	labels := 0
	for _, p := range shown {
		labels = max(labels, columns(p.short(width)))
	}
	var frame []string
	for _, p := range shown {
		frame = append(frame, b.line(p, now, width-1, min(labels, (width-1)*2/5)))
	}
	if height < 2 {
		return frame
	}
	total := fmt.Sprintf("%d parts done", b.tally.whole)
	if b.tally.whole == 1 {
		total = "1 part done"
	}
	if more := len(b.tally.parts) - len(shown); more > 0 {
		total += fmt.Sprintf(", %d more in progress", more)
	}
	if b.tally.bytes > 0 {
		total += ", " + size(b.tally.bytes)
	}
	return append(frame, clip(fmt.Sprintf("%s, %ds", total, int(now.Sub(b.begun).Seconds())), width-1))
}

// line describes a part: the label, a bar if the total is known and the terminal is wide enough,
// and the figures.
func (b *bars) line(p *partUnder, now time.Time, width, labels int) string {
	const longest, shortest = 30, 6
	figures := command.Printable(p.Message)
	switch {
	case p.Total > 0:
		figures = p.amount(p.Done) + "/" + p.amount(p.Total)
	case p.Done > 0:
		figures = p.amount(p.Done)
	}
	if seconds := p.took(now).Seconds(); p.Unit == api.UnitBytes && p.Done > 0 && seconds > 0.2 {
		figures += " " + size(int64(float64(p.Done)/seconds)) + "/s"
	}
	if p.Total > 0 && p.Message != "" {
		figures += " " + command.Printable(p.Message)
	}
	label := clip(p.short(width), labels)
	label += strings.Repeat(" ", labels-columns(label)+1)
	room := min(width-columns(label)-30, longest) // independent of the figures: the bar keeps its length
	if p.Total <= 0 || room < shortest {
		return clip(label+figures, width)
	}
	n := int(float64(min(max(p.Done, 0), p.Total)) / float64(p.Total) * float64(room))
	bar := strings.Repeat("=", n)
	if n < room {
		bar += ">" + strings.Repeat(" ", room-n-1)
	}
	after := clip("] "+figures, width-columns(label)-1-room)
	if b.color {
		bar = "\x1b[32m" + bar + "\x1b[0m"
	}
	return label + "[" + bar + after
}
