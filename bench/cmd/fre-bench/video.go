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
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func videoCommand() *cobra.Command {
	var c viewers.Config
	var weak, buffer, jsonFile, svg string
	var rate float64
	var insecure bool
	cmd := &cobra.Command{
		Use: "video URL...", Short: "Play HLS with many virtual viewers and report the quality of playback",
		Long: `Play HLS from any server with virtual viewers. Each URL is a master playlist. The report
says how long viewers waited for the first picture, how often playback stopped, which
quality they saw, and how long requests took. No engine and no video service is needed.

A viewer behaves like a player:

    reads the playlists, and loads segments of picture and sound on its own connection
    starts at the lowest rung, and changes rungs by the speed of its downloads
    loads ahead until its buffer is full
    tries again after errors with growing pauses, or after Retry-After; then gives up
    starts a new session at the end of the video

The run is a closed loop: a slow server gets fewer requests, and the viewers wait. To find
the server's highest rate, use fre-bench http.

Viewers on a weak network (--weak-share) read at a limited rate, with a small TCP window and
short TCP segments, so that the server has to keep slow connections.

With --rate every viewer loads at this bit rate, whatever the playlists say. The server's
capacity at 4 Mbit/s, for example, is the largest --viewers without rebuffering.

Each request carries the session's id as CMCD-Session: sid="…" (CTA-5004), for the server's
log. Ctrl-C ends the run and reports the measurements until then.`,
		Example: `  fre-bench video http://127.0.0.1:8090/assets/ID/hls/master.m3u8 --viewers 200
  fre-bench video URL --viewers 500 --weak-share 0.3 --seeks 1 --svg run.svg
  fre-bench video URL --viewers 1000 --rate 4 --seeks 0`,
		Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			c.URLs = args
			var err error
			if c.WeakMin, c.WeakMax, err = parseRange(weak); err != nil {
				return command.Usage(fmt.Errorf("--weak-rate %q: give Mbit/s such as 4, or 1-20", weak))
			}
			c.WeakMin, c.WeakMax = 1e6*c.WeakMin, 1e6*c.WeakMax
			from, to, err := parseRange(buffer)
			if err != nil || to > 1e6 {
				return command.Usage(fmt.Errorf("--buffer %q: give seconds such as 10, or 12-30", buffer))
			}
			c.BufferMin, c.BufferMax = time.Duration(from*float64(time.Second)), time.Duration(to*float64(time.Second))
			c.Rate = 1e6 * rate
			if c.Viewers < 1 || c.Duration <= 0 {
				return command.Usage(fmt.Errorf("%d viewers for %v: give at least one viewer and a positive duration", c.Viewers, c.Duration))
			}
			if insecure {
				c.TLS = &tls.Config{InsecureSkipVerify: true}
			}
			report, err := viewers.Run(cmd.Context(), c)
			switch {
			case errors.Is(err, viewers.ErrConfig):
				return command.Usage(err)
			case err != nil:
				return failure.Hint(err, "is the server running, and does the URL name a master playlist? fre-video inspect ID shows the URL of an asset")
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
	f.DurationVar(&c.Ramp, "ramp", 5*time.Second, "time until all viewers have started")
	f.Float64Var(&c.WeakShare, "weak-share", 0, "`share` of the viewers on a weak network, from 0 to 1")
	f.StringVar(&weak, "weak-rate", "1-20", "bit rate of a viewer on a weak network, `MIN-MAX` in Mbit/s")
	f.Float64Var(&c.Seeks, "seeks", 0.2, "average `number` of seeks of a viewer per minute")
	f.Float64Var(&rate, "rate", 0, "bit rate of every viewer in `Mbit/s` (default by the playlists and the network)")
	f.StringVar(&buffer, "buffer", "12-30", "how far a viewer loads ahead, `MIN-MAX` in seconds")
	f.DurationVar(&c.Start, "start", 2*time.Second, "how much a viewer loads before playback")
	f.DurationVar(&c.Timeout, "timeout", 2*time.Minute, "time limit of one request, from its sending")
	f.BoolVarP(&insecure, "insecure", "k", false, "do not check the server's certificate")
	f.StringVar(&jsonFile, "json", "", "`file` for the report as JSON, times in nanoseconds; - for standard output instead of the text")
	f.StringVar(&svg, "svg", "", "`file` for a plot of the run over time")
	f.Uint64Var(&c.Seed, "seed", 0, "seed `number` of the random choices; the same seed gives the same viewers")
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
