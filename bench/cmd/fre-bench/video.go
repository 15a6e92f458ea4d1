package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/bench/internal/viewers"
)

func videoCommand() *cobra.Command {
	var c viewers.Config
	var weak, buffer, jsonFile, svg string
	var rate float64
	var insecure bool
	cmd := &cobra.Command{
		Use: "video URL...", Short: "Play HLS with many virtual viewers and report what they lived through",
		Long: `Play HLS from any server with virtual viewers, each URL being a master playlist, and report
how long they waited for the picture, how often it stopped, in what quality they saw it, and
how long requests took.

  fre-bench video http://127.0.0.1:8090/assets/ID/hls/master.m3u8 --viewers 200
  fre-bench video URL --viewers 500 --weak-share 0.3 --seeks 1 --svg run.svg
  fre-bench video URL --viewers 1000 --rate 4 --seeks 0

Each viewer does as a player does: it reads the playlists, loads picture and sound segment by
segment on a connection of its own, begins at the lowest rung and changes to what its downloads
allow, loads ahead no more than its buffer takes, tries again after errors, later each time or
when Retry-After says, and gives a session up when that does not help. Who has seen all begins
anew. This is a closed loop: a server that becomes slow is asked less, and the viewers wait.
What it can do at most is for fre-bench http to tell.

Viewers on a weak network (--weak-share) read no faster than at a rate of their own, with a small
window and short segments of TCP, so that the server has slow connections to keep.

With --rate every viewer loads at that bit rate whatever the playlists say: how many viewers
at 4 Mbit/s a server has time for is the greatest --viewers without rebuffering.

A session's id is in each request as CMCD-Session: sid="…" (CTA-5004), for the server's log.
Ctrl-C ends the run with a report of what was until then. No engine and no service is needed.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			c.URLs = args
			var err error
			if c.WeakMin, c.WeakMax, err = parseRange(weak); err != nil {
				return usageError{fmt.Errorf("--weak-rate %q: give Mbit/s such as 4, or 1-20", weak)}
			}
			c.WeakMin, c.WeakMax = 1e6*c.WeakMin, 1e6*c.WeakMax
			from, to, err := parseRange(buffer)
			if err != nil || to > 1e6 {
				return usageError{fmt.Errorf("--buffer %q: give seconds such as 10, or 12-30", buffer)}
			}
			c.BufferMin, c.BufferMax = time.Duration(from*float64(time.Second)), time.Duration(to*float64(time.Second))
			c.Rate = 1e6 * rate
			if c.Viewers < 1 || c.Duration <= 0 {
				return usageError{fmt.Errorf("%d viewers for %v: give one at least, and some time", c.Viewers, c.Duration)}
			}
			if insecure {
				c.TLS = &tls.Config{InsecureSkipVerify: true} // requested by the user
			}
			report, err := viewers.Run(cmd.Context(), c)
			switch {
			case errors.Is(err, viewers.ErrConfig):
				return usageError{err}
			case err != nil:
				return &hintError{err, "is the server there, and is the URL one of a master playlist? fre-video inspect ID shows an asset's"}
			}
			if svg != "" {
				if err := writeFile(svg, report.WriteSVG); err != nil {
					return err
				}
			}
			switch jsonFile {
			case "":
			case "-":
				return report.WriteJSON(cmd.OutOrStdout())
			default:
				if err := writeFile(jsonFile, report.WriteJSON); err != nil {
					return err
				}
			}
			return report.WriteText(cmd.OutOrStdout())
		}),
	}
	f := cmd.Flags()
	f.IntVarP(&c.Viewers, "viewers", "n", 10, "`number` of viewers")
	f.DurationVarP(&c.Duration, "duration", "t", time.Minute, "how long to run")
	f.DurationVar(&c.Ramp, "ramp", 5*time.Second, "within how long the viewers come")
	f.Float64Var(&c.WeakShare, "weak-share", 0, "`share` of the viewers on a weak network, 0 to 1")
	f.StringVar(&weak, "weak-rate", "1-20", "what reaches these, `MIN-MAX` Mbit/s")
	f.Float64Var(&c.Seeks, "seeks", 0.2, "how `often` a minute a viewer goes to another place, on average")
	f.Float64Var(&rate, "rate", 0, "`Mbit/s` that every viewer loads at; without it: by the playlists and the network")
	f.StringVar(&buffer, "buffer", "12-30", "how far viewers load ahead, `MIN-MAX` seconds, each its own")
	f.DurationVar(&c.Start, "start", 2*time.Second, "how much is loaded before they play")
	f.DurationVar(&c.Timeout, "timeout", 2*time.Minute, "of one request, from its sending")
	f.BoolVarP(&insecure, "insecure", "k", false, "do not check the server's certificate")
	f.StringVar(&jsonFile, "json", "", "`file` to write the report to as JSON, times in nanoseconds; - for standard output, without the text")
	f.StringVar(&svg, "svg", "", "`file` to draw the run over time to")
	f.Uint64Var(&c.Seed, "seed", 0, "`number` that all chance comes from; the same makes viewers alike")
	return cmd
}

// parseRange parses "1-20", or "4" for both ends. The numbers must be positive.
func parseRange(text string) (from, to float64, err error) {
	low, high, found := strings.Cut(text, "-")
	if !found {
		high = low
	}
	from, err = strconv.ParseFloat(low, 64)
	if err == nil {
		to, err = strconv.ParseFloat(high, 64)
	}
	if err == nil && !(from > 0 && from <= to) {
		err = errors.New("no range")
	}
	return from, to, err
}
