package transcode_test

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/ffmpeg"
)

func TestMain(m *testing.M) {
	ffmpeg.Check = true
	if os.Getenv(childVariable) != "" {
		children()
		return
	}
	os.Exit(m.Run())
}

// checkLeaks fails the test for objects of FFmpeg that the test does not release.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := ffmpeg.Live()
	t.Cleanup(func() {
		if after := ffmpeg.Live(); after != before {
			t.Errorf("live before %+v, after %+v", before, after)
		}
	})
}

// clip makes a file with the ffmpeg program.
func clip(t testing.TB, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("ffmpeg", append(append([]string{"-v", "error", "-nostdin"}, args...), path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return path
}

// The size of pictures that show their number, in pixels, and its bits: columns and rows.
const (
	codedWidth, codedHeight = 160, 96
	codedColumns, codedRows = 4, 3
)

// coded makes a file of n frames with the ffmpeg program; each frame shows its number. args follow
// the input.
func coded(t testing.TB, name, rate string, n int, args string) string {
	t.Helper()
	var raw bytes.Buffer
	for frame := range n {
		for y := range codedHeight {
			for x := range codedWidth {
				bit := y*codedRows/codedHeight*codedColumns + x*codedColumns/codedWidth
				raw.WriteByte(byte(40 + 180*(frame>>bit&1)))
			}
		}
	}
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -f rawvideo -pix_fmt gray -s 160x96 -r "+rate+" -i - -pix_fmt yuv420p "+args), path)...)
	cmd.Stdin = &raw
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return path
}

// number returns the number shown by a picture; -1 if the number is unclear.
func number(p image.Image) int {
	n, r := 0, p.Bounds()
	for bit := range codedColumns * codedRows {
		x := r.Min.X + (2*(bit%codedColumns)+1)*r.Dx()/(2*codedColumns)
		y := r.Min.Y + (2*(bit/codedColumns)+1)*r.Dy()/(2*codedRows)
		switch v := color.GrayModel.Convert(p.At(x, y)).(color.Gray).Y; {
		case v > 170:
			n |= 1 << bit
		case v > 90:
			return -1
		}
	}
	return n
}

// numbers returns the numbers shown by a file's pictures. The ffmpeg program decodes them, with
// args before the output, and scales them to the size of coded pictures.
func numbers(t testing.TB, path string, args ...string) []int {
	t.Helper()
	cmd := exec.Command("ffmpeg", append(append([]string{"-v", "error", "-nostdin", "-i", path}, args...),
		"-vf", "scale=160:96", "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "gray", "-")...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil || len(out)%(codedWidth*codedHeight) != 0 {
		t.Fatalf("%s: %v, %d bytes\n%s", cmd, err, len(out), &failed)
	}
	var all []int
	for ; len(out) > 0; out = out[codedWidth*codedHeight:] {
		all = append(all, number(&image.Gray{Pix: out[:codedWidth*codedHeight], Stride: codedWidth, Rect: image.Rect(0, 0, codedWidth, codedHeight)}))
	}
	return all
}

// lying makes 20 coded pictures for a player to mirror from left to right, or not, and then to turn
// clockwise.
func lying(t testing.TB, degrees int, mirrored bool) string {
	t.Helper()
	filters := map[int]string{0: "null", 90: "transpose=cclock", 180: "hflip,vflip", 270: "transpose=clock"}[degrees]
	matrix := map[int][4]int32{0: {1, 0, 0, 1}, 90: {0, 1, -1, 0}, 180: {-1, 0, 0, -1}, 270: {0, -1, 1, 0}}[degrees]
	if mirrored {
		filters += ",hflip"
		matrix[0], matrix[1] = -matrix[0], -matrix[1]
	}
	path := coded(t, "lying.mp4", "10", 20, "-c:v libx264 -preset ultrafast -g 1 -vf "+filters)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte("tkhd")) + 4 + 40 // ISO/IEC 14496-12, 8.3.2
	for i, place := range []int{0, 4, 12, 16} {
		binary.BigEndian.PutUint32(b[at+place:], uint32(matrix[i]<<16))
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
