package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// The store counts the disk use of images as they come and go; it never walks. The unit is the
// *cohort*: all objects that the same set of trees holds, with their number and their blocks.
//
//	tree a ──┬── cohort {a}      only a has these objects
//	         ├── cohort {a, b}   both trees have these
//	tree b ──┘╲─ cohort {b}
//
// An image has the cohorts of its trees, because it links all objects of all its parts. Files
// that are never shared belong to the image itself: directories, empty files, the manifest. A
// cohort of a single image is unique to the image. So a new or removed image changes the figures
// of a second image only if the two are the only images of a cohort. To find the second image,
// each cohort counts its images and sums up their numbers: with one image left, the sum is the
// number of the image.
//
// A new tree moves objects into cohorts with one tree more. For this the store reads the tree's
// manifest once, when the first image has the tree. Trees without an image are forgotten later,
// in a separate transaction: on a full disk a removal must be small.
//
// Two kinds of files are not counted: further copies of an object at the file system's limit of
// links, and files of no image, such as downloads and trees of builds.

// ImageSize is the disk use of an image: blocks, in bytes, and inodes.
type ImageSize struct {
	Bytes, Inodes             int64 // total
	UniqueBytes, UniqueInodes int64 // in no other image: a removal frees about as much
}

// Sizes holds the sizes of all images at one moment. It must not be changed.
type Sizes struct {
	Bytes, Inodes int64 // of all images together, shared objects counted once
	images        map[Digest]ImageSize
}

// Image returns the size of one image, or zero for an unknown image.
func (s *Sizes) Image(d Digest) ImageSize { return s.images[d] }

// addedLocked returns the size of an image without the cohorts in seen, and adds the image's
// cohorts to seen.
func (z *sizing) addedLocked(seen map[*cohort]bool, d Digest) (bytes, inodes int64) {
	img := z.images[d]
	if img == nil {
		return 0, 0
	}
	bytes, inodes = img.ownBytes, img.ownInodes
	for c := range img.cohorts() {
		if !seen[c] {
			seen[c] = true
			bytes += c.bytes
			inodes += c.objects
		}
	}
	return bytes, inodes
}

// sizing holds the data behind the figures. A change needs metadata.mu and mu, and goes together
// with a change of the database. After a failed transaction sizing is loaded again.
type sizing struct {
	mu      sync.Mutex
	loaded  bool
	afresh  bool // loaded since the last publish
	trees   map[Digest]*sizedTree
	byID    map[int64]*sizedTree
	cohorts map[int64]*cohort
	bySet   map[uint64]*cohort // by cohort.set
	images  map[Digest]*sizedImage
	numbers map[uint64]*sizedImage
	next    uint64 // number of the next image
	changed map[Digest]bool
	bytes   int64 // of all images
	inodes  int64
}

type sizedTree struct {
	id      int64
	digest  Digest
	images  int // with this tree
	cohorts []*cohort
}

type cohort struct {
	id             int64
	trees          []*sizedTree
	set            uint64 // sum of the marks of its trees: equal for equal sets
	objects, bytes int64
	images         int    // with this cohort
	numbers        uint64 // sum of the numbers of its images
}

type sizedImage struct {
	number              uint64
	digest              Digest
	trees               []*sizedTree
	ownBytes, ownInodes int64
	size                ImageSize
}

// mark spreads a tree's id over 64 bits, so the sums of different sets differ (splitmix64,
// Steele et al. 2014).
func (t *sizedTree) mark() uint64 {
	x := uint64(t.id) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// cohorts returns the cohorts of the image's trees, each once.
func (i *sizedImage) cohorts() map[*cohort]struct{} {
	all := make(map[*cohort]struct{})
	for _, t := range i.trees {
		for _, c := range t.cohorts {
			all[c] = struct{}{}
		}
	}
	return all
}

func (z *sizing) reset() {
	z.trees, z.byID = make(map[Digest]*sizedTree), make(map[int64]*sizedTree)
	z.cohorts, z.bySet = make(map[int64]*cohort), make(map[uint64]*cohort)
	z.images, z.numbers = make(map[Digest]*sizedImage), make(map[uint64]*sizedImage)
	z.changed = make(map[Digest]bool)
	z.next, z.bytes, z.inodes = 1, 0, 0
}

// load reads all tables but sized_objects; images are the images of the same state.
func (z *sizing) load(q queryer, images map[Digest]*Image) error {
	z.reset()
	z.loaded, z.afresh = false, true
	err := z.loadTrees(q, images)
	if err == nil {
		err = z.loadCohorts(q)
	}
	if err == nil {
		err = z.loadImages(q, images)
	}
	z.loaded = err == nil
	return err
}

func (z *sizing) loadTrees(q queryer, images map[Digest]*Image) error {
	names := make(map[Digest]Digest) // of trees: one string for all images with the tree
	for _, img := range images {
		for i := range img.Parts {
			names[img.Parts[i].Tree] = img.Parts[i].Tree
		}
	}
	return eachRow(q, `SELECT id, digest FROM sized_trees`, func(scan scanFunc) error {
		t := new(sizedTree)
		if err := scan(&t.id, &t.digest); err != nil {
			return err
		}
		t.digest = cmp.Or(names[t.digest], t.digest)
		z.trees[t.digest], z.byID[t.id] = t, t
		return nil
	})
}

// loadCohorts reads the cohorts, and their trees, which are loaded.
func (z *sizing) loadCohorts(q queryer) error {
	err := eachRow(q, `SELECT id, objects, bytes FROM cohorts`, func(scan scanFunc) error {
		c := new(cohort)
		if err := scan(&c.id, &c.objects, &c.bytes); err != nil {
			return err
		}
		z.cohorts[c.id] = c
		return nil
	})
	if err != nil {
		return err
	}
	err = eachRow(q, `SELECT cohort, tree FROM cohort_trees`, func(scan scanFunc) error {
		var cid, tid int64
		if err := scan(&cid, &tid); err != nil {
			return err
		}
		c, t := z.cohorts[cid], z.byID[tid]
		if c == nil || t == nil {
			return fmt.Errorf("%w: cohort %d of tree %d", errCorrupt, cid, tid)
		}
		c.add(t)
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range z.cohorts {
		z.bySet[c.set] = c
	}
	return nil
}

// loadImages reads the images' own sizes, and enters each image with its trees.
func (z *sizing) loadImages(q queryer, images map[Digest]*Image) error {
	return eachRow(q, `SELECT image, bytes, inodes FROM image_sizes`, func(scan scanFunc) error {
		img := new(sizedImage)
		if err := scan(&img.digest, &img.ownBytes, &img.ownInodes); err != nil {
			return err
		}
		if of := images[img.digest]; of != nil {
			img.digest = of.Digest // share one string
			for i := range of.Parts {
				t := z.trees[of.Parts[i].Tree]
				if t == nil {
					return fmt.Errorf("%w: tree %s of image %s has no size", errCorrupt, of.Parts[i].Tree, img.digest)
				}
				img.has(t)
			}
		}
		z.enter(img)
		return nil
	})
}

func (i *sizedImage) has(t *sizedTree) {
	if !slices.Contains(i.trees, t) {
		i.trees = append(i.trees, t)
	}
}

func (c *cohort) add(t *sizedTree) {
	c.trees = append(c.trees, t)
	c.set += t.mark()
	t.cohorts = append(t.cohorts, c)
}

// enter adds an image, with known trees, to the figures.
func (z *sizing) enter(img *sizedImage) {
	img.number = z.next
	z.next++
	z.images[img.digest], z.numbers[img.number] = img, img
	z.changed[img.digest] = true
	img.size = ImageSize{Bytes: img.ownBytes, Inodes: img.ownInodes, UniqueBytes: img.ownBytes, UniqueInodes: img.ownInodes}
	z.bytes += img.ownBytes
	z.inodes += img.ownInodes
	for _, t := range img.trees {
		t.images++
	}
	for c := range img.cohorts() {
		switch c.images {
		case 0:
			z.bytes += c.bytes
			z.inodes += c.objects
			img.size.UniqueBytes += c.bytes
			img.size.UniqueInodes += c.objects
		case 1:
			z.alone(c, -1)
		}
		img.size.Bytes += c.bytes
		img.size.Inodes += c.objects
		c.images++
		c.numbers += img.number
	}
}

// alone adds a cohort to the unique size of its only image, or subtracts it with sign -1.
func (z *sizing) alone(c *cohort, sign int64) {
	if only := z.numbers[c.numbers]; only != nil {
		only.size.UniqueBytes += sign * c.bytes
		only.size.UniqueInodes += sign * c.objects
		z.changed[only.digest] = true
	}
}

// leave is the inverse of enter.
func (z *sizing) leave(d Digest) {
	img := z.images[d]
	if img == nil {
		return
	}
	delete(z.images, d)
	delete(z.numbers, img.number)
	z.changed[d] = true
	z.bytes -= img.ownBytes
	z.inodes -= img.ownInodes
	for _, t := range img.trees {
		t.images--
	}
	for c := range img.cohorts() {
		c.images--
		c.numbers -= img.number
		switch c.images {
		case 0:
			z.bytes -= c.bytes
			z.inodes -= c.objects
		case 1:
			z.alone(c, 1)
		}
	}
}

// publish returns the new figures; old holds the figures of the last publish.
func (z *sizing) publish(old *Sizes) *Sizes {
	n := &Sizes{Bytes: z.bytes, Inodes: z.inodes}
	if z.afresh {
		n.images = make(map[Digest]ImageSize, len(z.images))
	} else {
		n.images = maps.Clone(old.images)
	}
	for d := range z.changed {
		if img := z.images[d]; img != nil {
			n.images[d] = img.size
		} else {
			delete(n.images, d)
		}
	}
	clear(z.changed)
	z.afresh = false
	return n
}
