package build

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// GCPolicy selects images to remove. An image is eligible if Only, Before and Labels match and
// Keep matches none of its names. An eligible image is removed by the first rule that matches.
// Images in use by functions, sandboxes, parked interpreters or running builds are never
// removed. Base environments and the builder's tools are removed only by Unused and MaxBytes,
// because making them again needs the network.
type GCPolicy struct {
	Nameless bool          // rule: images without a name
	All      bool          // rule: every image
	Unused   time.Duration // rule: images not used for this time; 0: no rule
	PerName  int           // rule: all but the newest PerName images of each name; 0: no rule
	MaxBytes int64         // rule: least recently used images, until the store takes at most this; 0: no rule

	Only   func(*store.Image) bool // only images for which Only returns true; nil: all
	Before time.Time               // only images made before this time; zero: all
	Labels []string                // only images with all of these labels: "key" or "key=value"
	Keep   []string                // no image with a matching name: patterns of path.Match for "name:version" or the name alone
}

// The rules in reports and metrics.
const (
	RuleNameless = "nameless"
	RuleAll      = "all"
	RuleUnused   = "unused"
	RulePerName  = "per_name"
	RuleMaxBytes = "max_bytes"
)

// Check refuses malformed patterns and negative numbers.
func (p *GCPolicy) Check() error {
	for _, pattern := range p.Keep {
		if _, err := path.Match(pattern, ""); err != nil {
			return &template.FieldError{Field: "keep", Message: fmt.Sprintf("%q: %v", pattern, err)}
		}
	}
	if p.Unused < 0 || p.PerName < 0 || p.MaxBytes < 0 {
		return &template.FieldError{Field: "policy", Message: "no rule has a negative number"}
	}
	return nil
}

// removes reports whether the policy can remove any image.
func (p *GCPolicy) removes() bool {
	return p.Nameless || p.All || p.Unused > 0 || p.PerName > 0 || p.MaxBytes > 0
}

// GCConfig configures the engine's own garbage collections.
type GCConfig struct {
	Interval time.Duration // default 6 h; below 0: no collections of its own
	Policy   GCPolicy      // default: remove no image
}

// GCReport says what a collection removed, or would remove.
type GCReport struct {
	Images []GCImage // in order of removal
	store.Swept
	CacheBytes int64 // the part of Bytes that builds had downloaded
	Took       time.Duration
}

// GCImage is a removed image. Bytes is the space that it shared with no other image then.
type GCImage struct {
	Image *store.Image
	Rule  string
	Bytes int64
}

// GCOptions configure GC.
type GCOptions struct {
	DryRun bool
	Policy *GCPolicy // nil: the engine's own
	Cache  bool      // also remove all downloads of builds; store.ErrInUse during a build
}

// gcChoice applies a policy to the images of a store.
type gcChoice struct {
	policy GCPolicy
	store  *store.Store
	users  map[store.Digest]string
	now    time.Time
}

type chosenImage struct {
	GCImage
	used time.Time
}

// choose returns the images to remove, in order, and the bytes that the removal frees.
func (c *gcChoice) choose() ([]chosenImage, int64) {
	images := c.store.Images()
	surplus := c.surplus(images)
	var out, rest []chosenImage
	for _, img := range images {
		x := chosenImage{GCImage{Image: img}, c.store.LastUsed(img.Digest)}
		if c.users[img.Digest] != "" || x.used.IsZero() || !c.fits(img) {
			continue
		}
		own := ownKind(img)
		switch p := &c.policy; {
		case p.Nameless && len(img.Names) == 0 && !own:
			x.Rule = RuleNameless
		case p.All && !own:
			x.Rule = RuleAll
		case p.Unused > 0 && c.now.Sub(x.used) > p.Unused:
			x.Rule = RuleUnused
		case surplus[img.Digest] && !own:
			x.Rule = RulePerName
		default:
			rest = append(rest, x)
			continue
		}
		out = append(out, x)
	}
	if c.policy.MaxBytes > 0 {
		out = c.shrink(images, out, rest)
	}
	sizes := c.store.Sizes()
	for i := range out {
		out[i].Bytes = sizes.Image(out[i].Image.Digest).UniqueBytes
	}
	return out, sizes.Bytes - c.left(images, out)
}

// shrink adds least recently used images to out until the rest takes at most MaxBytes.
func (c *gcChoice) shrink(images []*store.Image, out, rest []chosenImage) []chosenImage {
	slices.SortStableFunc(rest, func(a, b chosenImage) int { return a.used.Compare(b.used) })
	most := c.policy.MaxBytes
	n := sort.Search(len(rest), func(n int) bool {
		return c.left(images, slices.Concat(out, rest[:n])) <= most
	})
	for _, x := range rest[:n] {
		x.Rule = RuleMaxBytes
		out = append(out, x)
	}
	return out
}

// left returns the bytes on disk of the images outside chosen.
func (c *gcChoice) left(images []*store.Image, chosen []chosenImage) int64 {
	keep := make(map[store.Digest]bool, len(images))
	for _, img := range images {
		keep[img.Digest] = true
	}
	for _, x := range chosen {
		delete(keep, x.Image.Digest)
	}
	bytes, _ := c.store.SizeWithout(keep)
	return bytes
}

// fits reports whether Only, Before, Labels and Keep let the rules apply to an image.
func (c *gcChoice) fits(img *store.Image) bool {
	p := &c.policy
	if p.Only != nil && !p.Only(img) {
		return false
	}
	if !p.Before.IsZero() && !img.Created.Before(p.Before) {
		return false
	}
	if len(p.Labels) > 0 && !hasLabels(img, p.Labels) {
		return false
	}
	return !slices.ContainsFunc(img.Names, func(name string) bool {
		repository := nameOnly(name)
		return slices.ContainsFunc(p.Keep, func(pattern string) bool {
			whole, _ := path.Match(pattern, name)
			part, _ := path.Match(pattern, repository)
			return whole || part
		})
	})
}

// surplus returns the images with names of which none is among the newest PerName of its
// repository. images is in the store's order, newest arrival first, independent of the clock.
func (c *gcChoice) surplus(images []*store.Image) map[store.Digest]bool {
	if c.policy.PerName == 0 {
		return nil
	}
	seen := make(map[string]int)
	out := make(map[store.Digest]bool)
	for _, img := range images {
		kept := len(img.Names) == 0
		names := make(map[string]bool)
		for _, s := range img.Names {
			names[nameOnly(s)] = true
		}
		for name := range names {
			if seen[name]++; seen[name] <= c.policy.PerName {
				kept = true
			}
		}
		if !kept {
			out[img.Digest] = true
		}
	}
	return out
}

// ownKind reports whether the builder made the image for its own use.
func ownKind(img *store.Image) bool {
	cfg, err := image.ConfigOf(img)
	return err == nil && cfg.Labels[image.LabelKind] != ""
}

func hasLabels(img *store.Image, labels []string) bool {
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return false
	}
	for _, l := range labels {
		key, value, exact := strings.Cut(l, "=")
		got, ok := cfg.Labels[key]
		if !ok || exact && got != value {
			return false
		}
	}
	return true
}

// nameOnly removes the version from "name:version". The name may contain a registry's port.
func nameOnly(s string) string { return s[:max(strings.LastIndexByte(s, ':'), 0)] }
