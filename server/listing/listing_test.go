package listing

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type item struct {
	N    int
	Text string
}

// rows returns a cache of items and the number of rows it has encoded.
func rows() (*Cache[item], *int) {
	n := 0
	return &Cache[item]{Row: func(buf []byte, it *item) ([]byte, error) {
		n++
		raw, err := json.Marshal(it)
		return append(buf, raw...), err
	}}, &n
}

// After any change the body of a list equals the output of encoding/json, and only new rows are
// encoded.
func TestCache(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	serial := 0
	fresh := func() *item {
		serial++
		return &item{serial, string(make([]byte, random.IntN(20)))}
	}
	c, encodings := rows()
	items := []*item{}
	for generation := range uint64(500) {
		old := slices.Clone(items)
		items = slices.Clone(items)
		for range random.IntN(4) {
			switch at := random.IntN(len(items) + 1); random.IntN(5) {
			case 0, 1:
				items = slices.Insert(items, at, fresh())
			case 2:
				items = slices.Insert(items, 0, fresh())
			case 3:
				if at < len(items) {
					items[at] = fresh()
				}
			default:
				items = slices.Delete(items, at, min(len(items), at+1+random.IntN(2)))
			}
		}
		added := 0
		for _, it := range items {
			if !slices.Contains(old, it) {
				added++
			}
		}
		before := *encodings
		body, err := c.At(generation, func() []*item { return items })
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(items)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want)+"\n", string(body.JSON)); diff != "" {
			t.Fatalf("generation %d (-want +got):\n%s", generation, diff)
		}
		if got := *encodings - before; got != added {
			t.Fatalf("generation %d: %d rows encoded for %d new ones", generation, got, added)
		}
		again, err := c.At(generation, func() []*item { t.Fatal("the list was asked for again"); return nil })
		if err != nil || again != body {
			t.Fatalf("generation %d has another body the second time: %v", generation, err)
		}
		var joined []byte
		if err := c.Rows(items, func(i int, row []byte) error {
			one, err := json.Marshal(items[i])
			if string(one) != string(row) {
				t.Errorf("generation %d, row %d: %s, want %s", generation, i, row, one)
			}
			joined = append(append(joined, row...), ',')
			return err
		}); err != nil || len(items) > 0 && len(joined) != len(body.JSON)-2 {
			t.Fatalf("generation %d: rows %s, %v", generation, joined, err)
		}
		same, err := c.Of(slices.Clone(items))
		if err != nil || same != body || *encodings-before != added {
			t.Fatalf("the same items have another body: %v", err)
		}
	}
}

func TestCacheError(t *testing.T) {
	broken := errors.New("broken")
	c := Cache[item]{Row: func(buf []byte, it *item) ([]byte, error) {
		if it.N == 2 {
			return nil, broken
		}
		return append(buf, strconv.Itoa(it.N)...), nil
	}}
	one, three := &item{N: 1}, &item{N: 3}
	for _, tt := range []struct {
		items []*item
		want  string
		err   error
	}{
		{nil, "[]\n", nil},
		{[]*item{one}, "[1]\n", nil},
		{[]*item{one, {N: 2}}, "", broken},
		{[]*item{three, one}, "[3,1]\n", nil},
	} {
		body, err := c.Of(tt.items)
		if !errors.Is(err, tt.err) || err == nil && string(body.JSON) != tt.want {
			t.Errorf("%d items: %v, %v, want %q", len(tt.items), body, err, tt.want)
		}
	}
}

// Concurrent requests for the same list cause one encoding.
func TestCacheAtOnce(t *testing.T) {
	c, encodings := rows()
	items := []*item{{N: 1}, {N: 2}}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if body, err := c.At(7, func() []*item { return items }); err != nil || string(body.JSON) != `[{"N":1,"Text":""},{"N":2,"Text":""}]`+"\n" {
				t.Errorf("%v, %v", body, err)
			}
		})
	}
	wg.Wait()
	if *encodings != 2 {
		t.Errorf("%d rows encoded, want 2", *encodings)
	}
}

func TestServe(t *testing.T) {
	body := NewBody([]byte("[]\n"))
	for _, tt := range []struct {
		name, match string
		status      int
	}{
		{"no condition", "", http.StatusOK},
		{"the same", body.ETag, http.StatusNotModified},
		{"weak", "W/" + body.ETag, http.StatusNotModified},
		{"one of several", `"x", ` + body.ETag + `,"y"`, http.StatusNotModified},
		{"any", "*", http.StatusNotModified},
		{"another", `"x"`, http.StatusOK},
		{"without quotes", body.ETag[1 : len(body.ETag)-1], http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		if tt.match != "" {
			r.Header.Set("If-None-Match", tt.match)
		}
		w := httptest.NewRecorder()
		body.ServeHTTP(w, r)
		want := map[int]string{http.StatusOK: "[]\n"}[tt.status]
		if w.Code != tt.status || w.Body.String() != want || w.Header().Get("ETag") != body.ETag {
			t.Errorf("%s: %d %q %v, want %d", tt.name, w.Code, w.Body, w.Header(), tt.status)
		}
	}
	if other := NewBody([]byte("[1]\n")); other.ETag == body.ETag {
		t.Error("another body has the same tag")
	}
}

// A large answer has a Content-Length and is not chunked.
func TestSend(t *testing.T) {
	body := strings.Repeat("7", 1<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		Send(w, http.StatusTeapot, []byte(body))
	}))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || string(got) != body+"\n" {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(body)+1)
	}
	if resp.ContentLength != int64(len(got)) || len(resp.TransferEncoding) > 0 || resp.StatusCode != http.StatusTeapot || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s, length %d, %v, %v", resp.Status, resp.ContentLength, resp.TransferEncoding, resp.Header)
	}
}
