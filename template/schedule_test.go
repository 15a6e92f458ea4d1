package template

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clockJob is a schedule with the model's own rule for its due times.
type clockJob struct {
	schedule string
	wild     bool // minute or hour begins with a star
	due      func(minute, hour, day int, month time.Month, weekday time.Weekday) bool
}

// calendar is a date, precomputed because the model needs it for millions of minutes.
type calendar struct {
	number  int64 // number of the day since 1970
	day     int
	month   time.Month
	weekday time.Weekday
}

var clockJobs = []clockJob{
	{"30 1 * * *", false, func(m, h, _ int, _ time.Month, _ time.Weekday) bool { return m == 30 && h == 1 }},
	{"@daily", false, func(m, h, _ int, _ time.Month, _ time.Weekday) bool { return m == 0 && h == 0 }},
	{"15,45 0-3/1 * * *", false, func(m, h, _ int, _ time.Month, _ time.Weekday) bool { return m%30 == 15 && h <= 3 }},
	{"10 2 * * sun", false, func(m, h, _ int, _ time.Month, w time.Weekday) bool { return m == 10 && h == 2 && w == time.Sunday }},
	{"5 2 1-7 * 0", false, func(m, h, d int, _ time.Month, w time.Weekday) bool {
		return m == 5 && h == 2 && (d <= 7 || w == time.Sunday)
	}},
	{"0 0 */2 * 5-7", false, func(m, h, d int, _ time.Month, w time.Weekday) bool {
		return m == 0 && h == 0 && d%2 == 1 && (w >= time.Friday || w == time.Sunday)
	}},
	{"20 23 29 feb *", false, func(m, h, d int, mo time.Month, _ time.Weekday) bool {
		return m == 20 && h == 23 && d == 29 && mo == time.February
	}},
	{"@hourly", true, func(m, _, _ int, _ time.Month, _ time.Weekday) bool { return m == 0 }},
	{"*/20 2 * * *", true, func(m, h, _ int, _ time.Month, _ time.Weekday) bool { return m%20 == 0 && h == 2 }},
	{"40 */3 * mar,apr,sep-nov *", true, func(m, h, _ int, mo time.Month, _ time.Weekday) bool {
		return m == 40 && h%3 == 0 && slices.Contains([]time.Month{3, 4, 9, 10, 11}, mo)
	}},
}

// model is the loop of cron(8): it wakes each minute and compares the wall clock with the time up
// to which it has run its jobs.
type model struct {
	virtual int64 // minutes of the wall clock
	today   calendar
	due     [][]int64
}

func (m *model) wakes(utc, wall int64) {
	late := wall - m.virtual
	switch {
	case late == 1:
		m.run(utc, wall, true, true)
	case late > 0 && late <= 180: // the clock was set forward
		m.run(utc, wall, true, false)
		for v := m.virtual + 1; v <= wall; v++ {
			m.run(utc, v, false, true)
		}
	case late <= 0 && late > -180: // the clock was set back: wait for the old time
		m.run(utc, wall, true, false)
		return
	default:
		m.run(utc, wall, true, true)
	}
	m.virtual = wall
}

func (m *model) run(utc, wall int64, wild, fixed bool) {
	d := &m.today
	if number := wall / (24 * 60); number != d.number {
		date := time.Unix(wall*60, 0).UTC()
		*d = calendar{number, date.Day(), date.Month(), date.Weekday()}
	}
	minute, hour := int(wall%60), int(wall/60%24)
	for i := range clockJobs {
		j := &clockJobs[i]
		if (j.wild && !wild) || (!j.wild && !fixed) || !j.due(minute, hour, d.day, d.month, d.weekday) {
			continue
		}
		if n := len(m.due[i]); n == 0 || m.due[i][n-1] != utc { // two skipped times give one run
			m.due[i] = append(m.due[i], utc)
		}
	}
}

// TestScheduleTenYears: Schedules agree with the model of cron(8) through ten years in zones with
// odd rules.
func TestScheduleTenYears(t *testing.T) {
	from, until := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, zone := range []string{"America/Santiago", "Africa/Cairo", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "Europe/Berlin", "UTC"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			location, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			offset := func(utc int64) int64 {
				_, seconds := time.Unix(utc*60, 0).In(location).Zone()
				return int64(seconds / 60)
			}
			first := from.Unix() / 60
			m := &model{virtual: first + offset(first), due: make([][]int64, len(clockJobs))}
			for utc, off := first+1, int64(0); utc < until.Unix()/60; utc++ {
				if utc%15 == 0 || off == 0 { // zone rules begin only at quarters of an hour
					off = offset(utc)
				}
				m.wakes(utc, utc+off)
			}
			for i := range clockJobs {
				s, err := ParseSchedule(clockJobs[i].schedule, zone)
				if err != nil {
					t.Fatal(err)
				}
				at := from
				for _, want := range m.due[i] {
					next := s.Next(at)
					if next.Unix() != want*60 {
						t.Errorf("%q after %v: %v, want %v", clockJobs[i].schedule, at.In(location), next, time.Unix(want*60, 0).In(location))
						break
					}
					at = next
				}
				if next := s.Next(at); next.Before(until) {
					t.Errorf("%q after %v: %v, want none before %v", clockJobs[i].schedule, at.In(location), next, until)
				}
			}
		})
	}
}

// TestScheduleCorrection: A zone's change of three hours and more counts as a correction of the
// clock.
func TestScheduleCorrection(t *testing.T) {
	for _, c := range []struct{ schedule, zone, after, want string }{
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", "2011-12-30T22:00:00Z"},       // 30 December does not exist
		{"30 1 8 mar *", "Antarctica/Casey", "2020-03-07T15:00:00Z", "2020-03-07T17:30:00Z"}, // 01:30 comes twice
	} {
		after, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(after).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("%q in %s after %s: %s, want %s", c.schedule, c.zone, c.after, got, c.want)
		}
	}
}

// TestScheduleFields: The fields of a schedule follow crontab(5).
func TestScheduleFields(t *testing.T) {
	year := func(schedule string) (days []string) {
		s, err := ParseSchedule(schedule, "UTC")
		if err != nil {
			t.Errorf("%q: %v", schedule, err)
			return nil
		}
		for at := time.Date(2025, 12, 31, 23, 59, 0, 0, time.UTC); len(days) < 5; {
			if at = s.Next(at); at.IsZero() {
				break
			}
			days = append(days, at.Format("2006-01-02 15:04 Mon"))
		}
		return days
	}
	for _, same := range [][]string{
		{"0 9 * * 7", "0 9 * * 0", "0 9 * * sun", "0\t9 \t*\t*\tSUN", "  0 9 * * 7 ", "00 09 * * 07"},
		{"0 0 * * 5-7", "0 0 * * fri,sat,sun", "0 0 * * 0,5-6"},
		{"0 0 * * *", "@daily", "@midnight", "0-0 0 */1 1-12 0-7"},
		{"@weekly", "0 0 * * 0", "0 0 */1 jan-DEC 7"},
		{"@yearly", "@annually", "0 0 1 1 *"},
		{"@hourly", "0 * * * *", "0 */1 * * *"},
		{"@monthly", "0 0 1 * *"},
		{"5-59/20 1 * * *", "5,25,45 1 * * *"},
		{"0 0 13 * 5", "0 0 13 * fri"},
		{"0 0 * * 1-5/2", "0 0 * * mon,wed,fri"},
		{"*/1000000000000 1 * * *", "0 1 * * *"},
	} {
		want := year(same[0])
		for _, other := range same[1:] {
			if diff := cmp.Diff(want, year(other)); diff != "" {
				t.Errorf("%q and %q: -want +got:\n%s", same[0], other, diff)
			}
		}
	}
	// A day field with a leading star restricts nothing by itself.
	for schedule, want := range map[string]string{
		"0 0 13 * 5":    "2026-01-02 00:00 Fri",
		"0 0 */13 * 5":  "2026-02-27 00:00 Fri",
		"0 0 13 * */5":  "2026-02-13 00:00 Fri",
		"0 0 1-31 * 5":  "2026-01-01 00:00 Thu",
		"0 0 29 2 */7":  "2032-02-29 00:00 Sun",
		"59 23 31 12 *": "2026-12-31 23:59 Thu",
	} {
		if days := year(schedule); len(days) == 0 || days[0] != want {
			t.Errorf("%q: %v, want %s first", schedule, days, want)
		}
	}
}

// TestScheduleErrors: The error for a faulty schedule names the field.
func TestScheduleErrors(t *testing.T) {
	for schedule, want := range map[string]string{
		"60 * * * *":          `minute "60": 60 is not between 0 and 59`,
		"* 24 * * *":          `hour "24": 24 is not between 0 and 23`,
		"* * 0 * *":           `day of month "0": 0 is not between 1 and 31`,
		"* * * 13 *":          `month "13": 13 is not between 1 and 12`,
		"* * * * 8":           `weekday "8": 8 is not between 0 and 7`,
		"* * * * mond":        `weekday "mond": "mond" is neither a number nor a name such as sun`,
		"* * * * sat-sun":     `weekday "sat-sun": the range sat-sun is reversed`,
		"5/10 * * * *":        `minute "5/10": a step needs a range, such as */10 or 0-59/10`,
		"*/0 * * * *":         `minute "*/0": the step "0" is not a whole number of 1 or more`,
		"1,,2 * * * *":        `minute "1,,2": "" is not a number`,
		"* ? * * *":           `hour "?": "?" is not a number`,
		"*5 * * * *":          `minute "*5": "*5" is not a number`,
		"1-2-3 * * * *":       `minute "1-2-3": "2-3" is not a number`,
		"0 0 31 2 *":          `no date has the given day`,
		"* * * *":             `has 4 fields`,
		"* * * * * *":         `has 6 fields`,
		"":                    `has 0 fields`,
		"@reboot":             `"@reboot" is not known`,
		"99999999999 * * * *": `minute "99999999999": 99999999999 is not between 0 and 59`,
	} {
		if _, err := ParseSchedule(schedule, "UTC"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", schedule, err, want)
		}
	}
}

// FuzzSchedule: Any schedule is parsed or refused, and its next time matches its fields.
func FuzzSchedule(f *testing.F) {
	for i := range clockJobs {
		f.Add(clockJobs[i].schedule, int64(1_700_000_000))
	}
	f.Add("1-5,*/7 7 * jan-mar sun", int64(-1))
	f.Fuzz(func(t *testing.T, schedule string, unix int64) {
		unix %= 1 << 34
		s, err := ParseSchedule(schedule, "Australia/Lord_Howe")
		if err != nil {
			return
		}
		after := time.Unix(unix, 0)
		if next := s.Next(after); !next.IsZero() && !next.After(after) {
			t.Errorf("%q after %v: %v", schedule, after, next)
		}
	})
}
