package oci

import (
	"errors"
	"runtime"
	"testing"
)

// TestPlatform: A platform is recognized in all spellings of docker's clients and builders.
func TestPlatform(t *testing.T) {
	uname := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if uname == "" {
		t.Skip("a processor without another name")
	}
	for s, ours := range map[string]bool{
		"": true, "linux": true, "LINUX": true, runtime.GOARCH: true, uname: true, "linux/" + uname: true, "Linux/" + runtime.GOARCH: true,
		`{"os":"linux","architecture":"` + uname + `"}`: true, `{"architecture":"` + runtime.GOARCH + `"}`: true,
		other: false, "linux/" + other: false, "windows/" + runtime.GOARCH: false, "linux/" + runtime.GOARCH + "nonsense": false, "linux/" + runtime.GOARCH + "/nonsense": false,
		"linux/a/b/c": false, "{": false, `{"os":"linux","architecture":"` + other + `"}`: false, "linux/armhf": false, "/": true, "nonsense": false,
	} {
		if err := CheckPlatform(s); (err == nil) != ours || err != nil && !errors.Is(err, ErrPlatform) {
			t.Errorf("CheckPlatform(%q): %v, want ours %v", s, err, ours)
		}
	}
	p, err := parsePlatform("linux/" + uname + "/v8")
	if err != nil || p.Architecture != runtime.GOARCH {
		t.Errorf("linux/%s/v8: %+v, %v", uname, p, err)
	}
}
