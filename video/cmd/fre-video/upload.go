package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/client"
	"github.com/fre-engine/fre/video/media"
)

func uploadCommand() *cobra.Command {
	var wait bool
	var name, codec, protect string
	cmd := &cobra.Command{
		Use:   "upload FILE",
		Short: "Upload a video and print its asset as JSON",
		Long: `Upload a video to the service at FRE_VIDEO_URL (default http://` + defaultListen + `), and print
the video's asset as JSON.

If the connection breaks or the service restarts, the upload continues by itself. After an
interrupted upload, run the same command again within a day to continue. With --wait the
command waits until the asset is ready.`,
		Example: `  fre-video upload holidays.mp4
  fre-video upload --wait --codec hevc --name holidays film.mp4`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := media.ParseCodec(codec); err != nil {
				return command.Usage(fmt.Errorf("--codec: %w", err))
			}
			protection, err := asset.ParseProtection(protect)
			if err != nil {
				return command.Usage(fmt.Errorf("--protect: %w", err))
			}
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			video := client.Video{Name: name, Codec: codec, Protection: protection}
			a, err := upload(cmd, c, args[0], video, wait)
			if err != nil {
				return err
			}
			if err := printJSON(cmd.OutOrStdout(), a); err != nil {
				return err
			}
			if a.State == asset.Failed {
				return &failedError{a.ID, a.Error}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the asset is ready or has failed")
	cmd.Flags().StringVar(&codec, "codec", "", "`codec` of the pictures: h264, hevc or av1 (default the service's --codec)")
	cmd.Flags().StringVar(&name, "name", "", "`name` of the asset (default the file's name)")
	cmd.Flags().StringVar(&protect, "protect", "none", "`encryption` of segments: none, aes-128 (HLS only) or cbcs (SAMPLE-AES in HLS, Clear Key in DASH)")
	return cmd
}

// openVideo opens a file for an upload.
func openVideo(path string) (*os.File, fs.FileInfo, error) {
	const next = "give the path of a video file"
	info, err := os.Stat(path) // opening a pipe would block until it has a writer
	if err != nil {
		return nil, nil, failure.Hint(err, next)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, failure.Hint(fmt.Errorf("%s is not a regular file", path), next)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, failure.Hint(err, next)
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// upload uploads a file and, if wait is true, waits for the result. It sets the data and size of
// video, and an empty name.
func upload(cmd *cobra.Command, c *client.Client, path string, video client.Video, wait bool) (a client.Asset, err error) {
	f, info, err := openVideo(path)
	if err != nil {
		return a, err
	}
	defer f.Close()
	video.Name, video.Data, video.Size = cmp.Or(video.Name, filepath.Base(path)), f, info.Size()
	bar := newBar(cmd.ErrOrStderr())
	defer bar.end()
	id, err := uploadOnce(cmd.Context(), c, path, video, info.ModTime(), func(sent int64) { bar.show("upload", sent, info.Size()) })
	if err != nil {
		bar.end()
		return a, explain(cmd.Context(), err)
	}
	if wait {
		waits := ""
		a, err = c.Follow(cmd.Context(), id, func(a client.Asset) {
			if a.Jobs != nil && a.Jobs.Waits != waits {
				if waits = a.Jobs.Waits; waits != "" {
					bar.end()
					fmt.Fprintln(cmd.ErrOrStderr(), "fre-video: "+waits)
				}
			}
			if a.Jobs != nil {
				bar.show("transcode", int64(a.Jobs.Done), int64(a.Jobs.All))
			}
		})
	} else {
		a, err = c.Asset(cmd.Context(), id)
	}
	bar.end()
	if cmd.Context().Err() != nil {
		return a, failure.Hint(context.Cause(cmd.Context()), "the service continues to work on the asset: fre-video inspect "+id)
	}
	return a, explain(cmd.Context(), err)
}

// bar shows progress on a line of a terminal, at most ten times per second. Without a terminal it
// shows nothing.
type bar struct {
	w    io.Writer // nil: no terminal
	last time.Time
	text string
}

func newBar(w io.Writer) *bar {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &bar{w: w}
	}
	return &bar{}
}

// show shows the progress of a step.
func (b *bar) show(step string, done, all int64) {
	if b.w == nil || done < all && time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last = time.Now()
	const width = 30
	part := width
	if all > 0 {
		part = int(width * min(done, all) / all)
	}
	text := fmt.Sprintf("%-10s [%s%s] %d%%", step, strings.Repeat("#", part), strings.Repeat(".", width-part), 100*part/width)
	fmt.Fprintf(b.w, "\r%-*s", len(b.text), text)
	b.text = text
}

// end clears the line.
func (b *bar) end() {
	if b.w != nil && b.text != "" {
		fmt.Fprintf(b.w, "\r%-*s\r", len(b.text), "")
		b.text = ""
	}
}
