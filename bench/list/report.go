package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/stats"
)

// result holds all measurements.
type result struct {
	Host    host.Info `json:"host"`
	Size    size      `json:"size"`
	Skipped []string  `json:"skipped,omitempty"`
	Asked   []*asked  `json:"asked"`

	EmptyStarts []time.Duration `json:"empty_starts_ns"` // of an engine without images
	ManyStarts  []time.Duration `json:"many_starts_ns"`
	EmptyBytes  int64           `json:"empty_bytes"` // PSS of the engine
	ManyBytes   int64           `json:"many_bytes"`

	Idle         polled `json:"idle"` // without requests
	Polled       polled `json:"polled"`
	PolledDocker polled `json:"polled_docker"`

	Syscalls       counted `json:"syscalls"`
	DockerSyscalls counted `json:"syscalls_docker"`
}

// row is a line of the table. Lower values are better in every row.
type row struct {
	what  string
	unit  string
	value float64
	aim   float64 // 0: no aim
	peer  float64 // dockerd's value, 0: no value
	err   string  // the reason for a missing value
}

// find returns the results under a name. For an unknown name the result has an error.
func (r *result) find(name string) *asked {
	if i := slices.IndexFunc(r.Asked, func(a *asked) bool { return a.Name == name }); i >= 0 {
		return r.Asked[i]
	}
	return &asked{Name: name, Err: "not measured"}
}

// over returns the median of the differences between the calls of a and b in the same turn. Load by
// other programs affects both calls of a turn nearly equally.
func over(a, b *asked) time.Duration {
	var more []time.Duration
	for i := range min(len(a.Latency), len(b.Latency)) {
		more = append(more, a.Latency[i]-b.Latency[i])
	}
	return stats.Median(more)
}

// rows returns the rows of the table. The aims are the engine's design goals.
func (r *result) rows() []row {
	few, many := grouped(r.Size.Few), grouped(r.Size.Many)
	boxes, files := grouped(r.Size.Boxes), grouped(r.Size.Files)
	var rows []row
	// latency adds a row with a median latency in milliseconds.
	latency := func(what, name string, aim float64, peer string) {
		a := r.find(name)
		rows = append(rows, row{what: what, unit: "ms", value: milliseconds(a.p50()), aim: aim, peer: milliseconds(r.find(peer).p50()), err: a.Err})
	}
	// ratio adds a row with the ratio of two medians.
	ratio := func(what, name, by string, aim float64, value func(*asked) time.Duration) {
		a, b := r.find(name), r.find(by)
		rows = append(rows, row{what: what, unit: "×", value: stats.Ratio(value(a), value(b)), aim: aim, err: cmp.Or(a.Err, b.Err)})
	}
	docker := r.find("few/dockerd").Err == ""

	const inDocker = ", Docker's format"
	latency("images, "+few, "few/fre", 0.3, "few/dockerd")
	latency("images, "+few+inDocker, "few/docker", 2*milliseconds(r.find("few/fre").p50()), "few/dockerd")
	latency("images, "+few+", unchanged (304)", "few/unchanged", 0.1, "")
	latency("images, "+many, "many/fre", 1, "")
	latency("images, "+many+inDocker, "many/docker", 2*milliseconds(r.find("many/fre").p50()), "")
	latency("images, "+many+", unchanged (304)", "many/unchanged", 0.1, "")
	latency("images, "+many+", right after an image got a further name", "many/tagged", 0, "")
	latency("images, "+many+", right after an image lost a name", "many/untagged", 0, "")
	ratio(fmt.Sprintf("images, %s of %d layers ÷ of one", grouped(r.Size.Layered), r.Size.Layers), "layers/many", "layers/one", 1.1, (*asked).p50)
	perList := "CPU time per list of " + few + " images, to be a 300th of dockerd's"
	peer := milliseconds(r.find("few/dockerd").cpu())
	for _, in := range []struct{ name, format string }{{"few/fre", ""}, {"few/docker", inDocker}} {
		a := r.find(in.name)
		rows = append(rows, row{what: perList + in.format, unit: "ms", value: milliseconds(a.cpu()), aim: peer / 300, peer: peer, err: a.Err})
	}
	for _, p := range []struct {
		what string
		aim  float64
		polled
	}{
		{"of one CPU, " + many + " images polled 10 times a second", 2, r.Polled},
		{"of one CPU, " + many + " images polled 10 times a second" + inDocker, 0, r.PolledDocker},
		{"of one CPU, not polled", 0, r.Idle},
	} {
		rows = append(rows, row{what: p.what, unit: "%", value: 100 * p.Part, aim: p.aim, err: p.Err})
	}
	beside := fmt.Sprintf("`ps -a -s`, %s sandboxes, %s files in %d of them", grouped(r.Size.DockerBoxes), files, r.Size.Full)
	latency(beside, "boxes/fre", 0, "boxes/dockerd")
	latency(beside+inDocker, "boxes/docker", 0, "boxes/dockerd")
	crowd := fmt.Sprintf("`ps -a -s`, %s sandboxes, %s files in %d of them", boxes, files, r.Size.Full)
	latency(crowd, "with/fre", 3, "")
	latency(crowd+inDocker, "with/docker", 3, "")
	ratio("`ps -a -s` with ÷ without the files", "with/fre", "without/fre", 1.1, (*asked).p50)
	ratio("`ps -a -s` with ÷ without the files"+inDocker, "with/docker", "without/docker", 1.1, (*asked).p50)
	rows = append(rows,
		row{what: "system calls of `ps -a -s` for each running sandbox", value: r.Syscalls.PerBox, aim: 2, err: r.Syscalls.Err},
		row{what: "system calls of `ps -a -s` for each running sandbox" + inDocker, value: r.DockerSyscalls.PerBox, aim: 2, err: r.DockerSyscalls.Err})
	if !slices.ContainsFunc(r.Skipped, func(s string) bool { return strings.HasPrefix(s, "docker's client") }) {
		for _, c := range dockerCommands {
			what := fmt.Sprintf("`docker %s`, the whole process", strings.Join(c.args, " "))
			latency(what, c.name+"/docker", 0, c.name+"/dockerd")
			latency(what+", the client's own time (FRE's answers out of memory)", c.name+"/floor", 0, "")
			own, with := r.find(c.name+"/floor"), r.find(c.name+"/docker")
			rows = append(rows, row{what: what + ", FRE's addition to the client's time", unit: "ms", value: milliseconds(over(with, own)), err: cmp.Or(with.Err, own.Err)})
		}
		latency("`docker images` of none, the client's own time", "images/none", 0, "")
		for _, c := range dockerCommands[1:] {
			what := fmt.Sprintf("`docker %s` ÷ `docker version`", strings.Join(c.args, " "))
			ratio(what, c.name+"/docker", "version/docker", 1.25, (*asked).p50)
			ratio(what+", the client's own time", c.name+"/floor", "version/floor", 0, (*asked).p50)
		}
	}
	latency("`system df`, "+few+" images", "df/fre", 5, "df/dockerd")
	latency("`system df`, "+few+" images"+inDocker, "df/docker", 5, "df/dockerd")
	rows = append(rows,
		row{what: "start to the first answer, " + many + " images", unit: "ms", value: milliseconds(stats.Median(r.ManyStarts)), aim: 1000},
		row{what: "start to the first answer, no images", unit: "ms", value: milliseconds(stats.Median(r.EmptyStarts))},
		row{what: "memory of the engine with " + many + " images, after the lists", unit: "MiB", value: mebibytes(r.ManyBytes)},
		row{what: "memory for the images", unit: "MiB", value: mebibytes(r.ManyBytes - r.EmptyBytes), aim: 64})
	if !docker {
		for i := range rows { // values without a peer are invalid
			rows[i].peer = 0
		}
	}
	return rows
}

// markdown returns the table of the page.
func (r *result) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	p("Medians. A call is a request over a Unix socket, from the first byte of the request to the last byte of the answer. Rows with *Docker's format* use FRE's socket for Docker's clients; the remaining rows use FRE's own API. *dockerd* holds the same images, made by `docker load`, and stopped containers with the same files. CPU time is the time of the engine's process clock. Less is better in every row.\n")
	for _, s := range r.Skipped {
		p("Left out: %s.\n", s)
	}
	p("| | FRE | aim | met | dockerd | dockerd ÷ FRE |\n|---|---:|---:|---|---:|---:|")
	for _, row := range r.rows() {
		if row.err != "" {
			p("| %s | not measured | %s |  | %s |  |", row.what, number(row.aim, row.unit), number(row.peer, row.unit))
			continue
		}
		met, by := "", ""
		switch {
		case row.aim == 0:
		case row.value <= row.aim:
			met = "yes"
		default:
			met = "no"
		}
		if row.peer > 0 && row.value > 0 {
			by = fmt.Sprintf("%.3g", row.peer/row.value)
		}
		value := number(row.value, row.unit)
		if value == "" {
			value = "0"
		}
		p("| %s | %s | %s | %s | %s | %s |", row.what, value, number(row.aim, row.unit), met, number(row.peer, row.unit), by)
	}
	return b.String()
}

// number formats a value with its unit and three digits, "" for 0.
func number(v float64, unit string) string {
	if v == 0 {
		return ""
	}
	text := fmt.Sprintf("%.3g", v)
	if v >= 1000 {
		text = fmt.Sprintf("%.0f", v)
	}
	return strings.TrimSpace(text + " " + unit)
}

// grouped formats a number with commas between thousands.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
