package template

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Schedule is a parsed cron schedule in a time zone, by the rules of Debian's crontab(5) and
// cron(8) (cron 3.0pl1-162: entry.c, find_jobs in cron.c). A Schedule is safe for concurrent use.
type Schedule struct {
	minute, hour, day, month, weekday uint64 // a bit for each value
	anyDay, anyWeekday                bool   // the field begins with a star
	wild                              bool   // minute or hour begins with a star: the job follows the clock's changes
	zone                              *time.Location
}

// scheduleField is one of the five fields.
type scheduleField struct {
	name      string
	low, high int
	names     []string // of low and the values after; nil: numbers only
}

var scheduleFields = [5]scheduleField{
	{name: "minute", low: 0, high: 59},
	{name: "hour", low: 0, high: 23},
	{name: "day of month", low: 1, high: 31},
	{name: "month", low: 1, high: 12, names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{name: "weekday", low: 0, high: 7, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// scheduleNames are the schedules with a name.
var scheduleNames = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// ParseSchedule reads a schedule, such as "30 4 * * 1-5" or "@daily", in a zone of the IANA
// time zone database. Its errors name the field.
func ParseSchedule(schedule, zone string) (*Schedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, fmt.Errorf("time zone %q is not known", zone)
	}
	text := strings.Trim(schedule, " \t")
	if strings.HasPrefix(text, "@") {
		fields, ok := scheduleNames[text]
		if !ok {
			return nil, fmt.Errorf("schedule %q is not known: write five fields, @hourly, @daily, @weekly, @monthly or @yearly", schedule)
		}
		text = fields
	}
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) != len(scheduleFields) {
		return nil, fmt.Errorf(`schedule %q has %d fields: write five (minute, hour, day of month, month, weekday) such as "30 4 * * 1-5"`, schedule, len(fields))
	}
	s := &Schedule{zone: location}
	for i, to := range []*uint64{&s.minute, &s.hour, &s.day, &s.month, &s.weekday} {
		if *to, err = scheduleFields[i].parseList(fields[i]); err != nil {
			return nil, fmt.Errorf("schedule %q: %w", schedule, err)
		}
	}
	star := func(i int) bool { return fields[i][0] == '*' }
	s.wild, s.anyDay, s.anyWeekday = star(0) || star(1), star(2), star(4)
	s.weekday |= s.weekday >> 7 & 1 // 7 is Sunday, as 0
	if _, ok := s.wall(0); !ok {
		return nil, fmt.Errorf("schedule %q: no date has the given day of month, month and weekday", schedule)
	}
	return s, nil
}

// parse reads a list of values and ranges, and returns a bit for each value.
func (f *scheduleField) parseList(text string) (set uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		values, err := f.parseRange(part)
		if err != nil {
			return 0, fmt.Errorf("%s %q: %w", f.name, text, err)
		}
		set |= values
	}
	return set, nil
}

// parseRange reads N, N-M, N-M/STEP, * and */STEP.
func (f *scheduleField) parseRange(text string) (set uint64, err error) {
	text, stepText, stepped := strings.Cut(text, "/")
	first, last, ranged := strings.Cut(text, "-")
	low, high, step := f.low, f.high, 1
	switch {
	case text == "*":
	case stepped && !ranged:
		return 0, fmt.Errorf("a step needs a range, such as */%s or %d-%d/%s", stepText, f.low, f.high, stepText)
	default:
		if low, err = f.number(first); err != nil {
			return 0, err
		}
		if high = low; ranged {
			if high, err = f.number(last); err != nil {
				return 0, err
			}
		}
	}
	if high < low {
		return 0, fmt.Errorf("the range %s is reversed", text)
	}
	if stepped {
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
			return 0, fmt.Errorf("the step %q is not a whole number of 1 or more", stepText)
		}
	}
	for v := low; v <= high; v += min(step, 64) {
		set |= 1 << v
	}
	return set, nil
}

func (f *scheduleField) number(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.low + i, nil
		}
	}
	if text == "" || strings.Trim(text, "0123456789") != "" {
		if f.names != nil {
			return 0, fmt.Errorf("%q is neither a number nor a name such as %s", text, f.names[0])
		}
		return 0, fmt.Errorf("%q is not a number", text)
	}
	if n, err := strconv.Atoi(text); err == nil && f.low <= n && n <= f.high {
		return n, nil
	}
	return 0, fmt.Errorf("%s is not between %d and %d", text, f.low, f.high)
}

// adjustment is the largest change of the clock, in seconds, that cron(8) treats as daylight saving
// time. A larger change corrects the clock: the new time applies at once.
const adjustment = 3 * 60 * 60

// Next returns the first time after t at which the job is due, zero without one.
//
// If the zone's clock skips the job's time, the job is due right after the jump. If the time comes
// twice, the job is due the first time only. Wild jobs follow the clock.
func (s *Schedule) Next(t time.Time) time.Time {
	from := t.Unix() + 1
	for { // each period of one offset from UTC
		start, end := time.Unix(from, 0).In(s.zone).ZoneBounds()
		_, offset := time.Unix(from, 0).In(s.zone).Zone()
		low := from + int64(offset)
		if !start.IsZero() && !s.wild {
			_, before := start.Add(-time.Second).Zone()
			old, now := start.Unix()+int64(before), start.Unix()+int64(offset)
			switch change := offset - before; {
			case change > 0 && change <= adjustment && from <= start.Unix():
				if w, ok := s.wall(old); ok && w < now {
					return start
				}
			case change < 0 && change > -adjustment:
				low = max(low, old)
			}
		}
		w, ok := s.wall(low)
		if !ok {
			return time.Time{}
		}
		if at := w - int64(offset); end.IsZero() || at < end.Unix() {
			return time.Unix(at, 0).In(s.zone)
		}
		from = end.Unix()
	}
}

// wallDays is how many days to search: the Gregorian calendar then repeats.
const wallDays = 146_097

// wall returns the first time, not before from, that the fields match. Both are wall clock times of
// the zone, in seconds since 1970 as if they were UTC.
func (s *Schedule) wall(from int64) (int64, bool) {
	minute := (from + 59) / 60
	if from < 0 {
		minute = from / 60
	}
	day := minute / (24 * 60)
	if minute < 0 {
		day--
	}
	first := int(minute - day*24*60) // of the day's minutes
	for last := day + wallDays; day <= last; day++ {
		if s.onDay(time.Unix(day*24*60*60, 0).UTC()) {
			if m, ok := s.inDay(first); ok {
				return (day*24*60 + int64(m)) * 60, true
			}
		}
		first = 0
	}
	return 0, false
}

// onDay reports whether the job is due on a day. If a day field begins with a star, both fields
// must match; otherwise one of the two must.
func (s *Schedule) onDay(d time.Time) bool {
	if s.month>>d.Month()&1 == 0 {
		return false
	}
	day, weekday := s.day>>d.Day()&1 == 1, s.weekday>>d.Weekday()&1 == 1
	if s.anyDay || s.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// inDay returns the first minute of a day, not before from, that hour and minute match.
func (s *Schedule) inDay(from int) (int, bool) {
	for hour, minute := from/60, from%60; hour < 24; hour, minute = hour+1, 0 {
		if rest := s.minute >> minute << minute; s.hour>>hour&1 == 1 && rest != 0 {
			return hour*60 + bits.TrailingZeros64(rest), true
		}
	}
	return 0, false
}
