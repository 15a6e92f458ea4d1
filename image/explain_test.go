package image

import "testing"

// TestAsked: Programs ask for a left-out file by the name of its module, without the version and the
// platform.
func TestAsked(t *testing.T) {
	for _, c := range []struct{ pattern, name, want string }{
		{"usr/lib/lang*/data", "usr/lib/lang3/data/topics.x", "data"},
		{"usr/lib/lang*/load/nis.*", "usr/lib/lang3/load/nis.lang-311-x86_64-linux-gnu.so", "nis"},
		{"usr/lib/lang/gems/*/gems/test-*", "usr/lib/lang/gems/3.1.0/gems/test-5.15.0/lib/test.x", "test"},
		{"usr/lib/*/libicuio.so.*", "usr/lib/x86_64-linux-gnu/libicuio.so.72", "libicuio"},
		{"usr/share/zoneinfo/right", "usr/share/zoneinfo/right/UTC", ""},
	} {
		if got := asked(c.pattern, c.name); got != c.want {
			t.Errorf("%s in %s: %q, want %q", c.name, c.pattern, got, c.want)
		}
	}
}

// talkingToy is toy with messages.
type talkingToy struct{ toy }

func (talkingToy) Messages() Messages {
	return Messages{
		Missing: `no toy (\w+)`, Threads: `no hands`, Memory: `box full`, ModulePrefix: "toy-",
		Aborted: func(args []string) string {
			if args[0] == "toy" {
				return "the toy is broken"
			}
			return ""
		},
	}
}

// TestToyMessages: A language, added by a test alone, has its failures explained. Languages without
// messages leave those of the C library.
func TestToyMessages(t *testing.T) {
	c := &Config{Args: []string{"toy"}, LeftOut: &LeftOut{Packages: []string{"toy-bear"}}}
	c.Resources.Pids = 7
	x := NewExplainer([]Runtime{named("mute"), talkingToy{}})
	for message, want := range map[string]string{
		"no toy bear": "bear is in the Debian package toy-bear, missing in the base: write packages: {deb: [toy-bear]} in fret.yaml",
		"no toy duck": "", "no bear": "",
		"no hands": "the sandbox has at most 7 processes and threads: raise resources.pids in fret.yaml",
		"box full": "the sandbox has at most 0 of memory, /tmp included: raise resources.memory in fret.yaml",
	} {
		if got := x.Failure(c, message, ""); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
	mute := NewExplainer([]Runtime{named("mute")})
	if got := x.Abort(c) + x.Abort(&Config{Args: []string{"x"}}) + mute.Abort(c); got != "the toy is broken" {
		t.Errorf("aborts: %q", got)
	}
	if got := mute.Failure(c, "no toy bear", ""); got != "" {
		t.Errorf("without the language: %q", got)
	}
	if got, want := mute.Failure(c, "fork: Resource temporarily unavailable", ""), x.Failure(c, "no hands", ""); got != want {
		t.Errorf("of the C library: %q, want %q", got, want)
	}
}
