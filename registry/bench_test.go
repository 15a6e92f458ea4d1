package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/internal/fretest"
)

// BenchmarkImage pushes and pulls an image of six layers over loopback, three layers at a time and
// streamed like docker, in turn to FRE's registry and to the distribution project's. FRE_BENCH_MB
// is the size of the image, 24 by default.
func BenchmarkImage(b *testing.B) {
	const layers, parallel = 6, 3
	megabytes, err := strconv.Atoi(cmp.Or(os.Getenv("FRE_BENCH_MB"), "24"))
	if err != nil {
		b.Fatal(err)
	}
	layer := make([]byte, megabytes<<20/layers)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(layer) // never fails
	cmd, base := child(b, b.TempDir())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	peers := []struct{ name, base string }{
		{"fre", base},
		{"distribution", "http://" + fretest.Registry(b)},
	}
	took := map[string][]time.Duration{}
	send := func(method, url string, body io.Reader) (string, error) {
		req, err := http.NewRequestWithContext(b.Context(), method, url, body)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return "", err
		}
		if resp.StatusCode >= 300 {
			return "", fmt.Errorf("%s %s: %s", method, url, resp.Status)
		}
		return resp.Header.Get("Location"), nil
	}
	// each runs a function for each layer and notes the total time.
	n := uint64(0)
	each := func(what string, do func(head []byte, digest string) error) {
		b.Helper()
		heads, digests := make([][]byte, layers), make([]string, layers)
		for i := range layers {
			heads[i] = binary.BigEndian.AppendUint64(nil, n*layers+uint64(i))
			sum := sha256.New()
			_, _ = sum.Write(heads[i])
			_, _ = sum.Write(layer)
			digests[i] = "sha256:" + hex.EncodeToString(sum.Sum(nil))
		}
		start := time.Now()
		group, _ := errgroup.WithContext(context.Background())
		group.SetLimit(parallel)
		for i := range layers {
			group.Go(func() error { return do(heads[i], digests[i]) })
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		took[what] = append(took[what], time.Since(start))
	}
	for b.Loop() {
		n++
		for _, peer := range peers {
			absolute := func(loc string) string {
				if loc[0] == '/' {
					return peer.base + loc
				}
				return loc
			}
			each(peer.name+"-push", func(head []byte, digest string) error {
				loc, err := send("POST", peer.base+"/v2/bench/blobs/uploads/", nil)
				if err != nil {
					return err
				}
				body := struct{ io.Reader }{io.MultiReader(bytes.NewReader(head), bytes.NewReader(layer))}
				if loc, err = send("PATCH", absolute(loc), body); err != nil {
					return err
				}
				loc = absolute(loc)
				separator := "?"
				if bytes.ContainsRune([]byte(loc), '?') {
					separator = "&"
				}
				_, err = send("PUT", loc+separator+"digest="+digest, nil)
				return err
			})
			each(peer.name+"-pull", func(_ []byte, digest string) error {
				_, err := send("GET", peer.base+"/v2/bench/blobs/"+digest, nil)
				return err
			})
		}
	}
	b.ReportMetric(0, "ns/op") // the total of all steps says nothing
	for what, times := range took {
		slices.Sort(times)
		b.ReportMetric(float64(megabytes)/times[len(times)/2].Seconds(), what+"-MB/s")
	}
}
