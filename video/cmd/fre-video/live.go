package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/client"
)

func liveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Live streams: of an asset over and over, or of whoever publishes",
		Long: `Live streams, as HLS with parts (low latency) and DASH at /live/NAME/hls/master.m3u8 and
/live/NAME/dash/manifest.mpd.`,
	}
	cmd.AddCommand(liveStartCommand(), liveLsCommand(), liveInspectCommand(), liveStopCommand())
	return cmd
}

func liveStartCommand() *cobra.Command {
	var loop string
	var window time.Duration
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Start a live stream; print it as JSON",
		Long: `Start a live stream.

With --loop it plays an asset over and over, in all its renditions; a file is uploaded
first, and transcoded. Without, it waits for a publisher, who sends H.264 and AAC to one of the
addresses that are printed: "rtmp" or "srt" for ffmpeg, the two parts of "obs" for Server and
Stream Key of OBS Studio:

    ffmpeg -re -i FILE -c:v libx264 -g 50 -c:a aac -f flv 'rtmp://HOST:1935/live/NAME?key=KEY'

The service listens for publishers where serve --rtmp and --srt say. A key frame each second or two
makes for short segments. A stream goes on over restarts of the service.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			if loop != "" && !asset.ValidID(loop) || isFile(loop) {
				a, err := upload(cmd, c, loop, client.Video{}, true)
				if err != nil {
					return err
				}
				if a.State != asset.Ready {
					return &failedError{a.ID, a.Error}
				}
				loop = a.ID
			}
			s, err := c.StartLive(cmd.Context(), asset.LiveSpec{Name: args[0], Loop: loop, Window: window.Seconds()})
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return printJSON(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringVar(&loop, "loop", "", "`FILE` or asset to play over and over")
	cmd.Flags().DurationVar(&window, "window", 5*time.Minute, "how far viewers may go back, 30s to 12h")
	return cmd
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func liveLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the live streams", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := c.Lives(cmd.Context())
			if err != nil {
				return explain(cmd.Context(), err)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tINPUT\tTRACKS\tCREATED")
			for _, s := range all {
				input := "publisher " + s.Publisher
				if s.Loop != "" {
					input = "asset " + s.Loop
				}
				var tracks []string
				for _, t := range s.Tracks {
					tracks = append(tracks, t.Name)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.State, strings.TrimSpace(input), strings.Join(tracks, " "), s.Created.Local().Format(time.DateTime))
			}
			return w.Flush()
		},
	}
}

func liveInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use: "inspect NAME", Short: "Print a live stream as JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Live(cmd.Context(), args[0])
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return printJSON(cmd.OutOrStdout(), s)
		},
	}
}

func liveStopCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stop NAME...", Short: "End live streams; nothing is left of them", Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			var failed []error
			for _, name := range args {
				if err := c.StopLive(cmd.Context(), name); err != nil {
					failed = append(failed, explain(cmd.Context(), err))
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return errors.Join(failed...)
		},
	}
}
