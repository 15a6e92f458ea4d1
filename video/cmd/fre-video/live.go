package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/internal/command"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/client"
)

func liveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Work with live streams",
		Long: `Work with live streams. The service serves each stream as low-latency HLS at
/live/NAME/hls/master.m3u8, and as DASH at /live/NAME/dash/manifest.mpd.`,
	}
	cmd.AddCommand(liveStartCommand(), liveLsCommand(), liveInspectCommand(), liveStopCommand())
	return cmd
}

func liveStartCommand() *cobra.Command {
	var loop string
	var window time.Duration
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Start a live stream and print the stream as JSON",
		Long: `Start a live stream and print the stream as JSON. The stream continues after a restart of
the service.

With --loop the stream repeats an asset in all its renditions. A file is uploaded and
transcoded first.

Without --loop the stream waits for a publisher with H.264 and AAC. The publisher connects
to a printed address: "rtmp" or "srt" for ffmpeg, or the two parts of "obs" for Server and
Stream Key in OBS Studio. The service listens for publishers at the addresses in
fre-video serve --rtmp and --srt. Send a key frame every second or two: segments are then
short.`,
		Example: `  fre-video live start channel --loop holidays.mp4
  fre-video live start event
  ffmpeg -re -i FILE -c:v libx264 -g 50 -c:a aac -f flv 'rtmp://HOST:1935/live/event?key=KEY'`,
		Args: command.Args(cobra.ExactArgs(1)),
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
	cmd.Flags().StringVar(&loop, "loop", "", "`FILE` or asset to repeat")
	cmd.Flags().DurationVar(&window, "window", 5*time.Minute, "how far back viewers can seek, from 30s to 12h")
	return cmd
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func liveLsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the live streams", Args: command.Args(cobra.NoArgs),
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
		Use: "inspect NAME", Short: "Print a live stream as JSON", Args: command.Args(cobra.ExactArgs(1)),
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
		Use: "stop NAME...", Short: "Stop live streams and remove their data", Args: command.Args(cobra.MinimumNArgs(1)),
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
