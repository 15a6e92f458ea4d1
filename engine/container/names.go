package container

import (
	"fmt"
	"math/rand/v2"
)

// Words for the names of containers.
var (
	adjectives = [...]string{
		"able", "amber", "bold", "brave", "brisk", "calm", "clear", "clever", "coral", "crisp", "eager", "early", "fair", "fine", "fresh",
		"gentle", "glad", "golden", "green", "happy", "hazel", "jolly", "keen", "kind", "late", "light", "lively", "lucky", "mellow", "merry",
		"mild", "neat", "nimble", "noble", "olive", "plain", "proud", "quick", "quiet", "rapid", "royal", "sharp", "silent", "silver", "sleek",
		"smart", "solid", "steady", "still", "sunny", "swift", "tidy", "vivid", "warm", "wise", "witty",
	}
	nouns = [...]string{
		"alder", "anchor", "apple", "arrow", "aspen", "badger", "beacon", "birch", "brook", "canyon", "cedar", "cliff", "clover", "comet", "crane",
		"delta", "falcon", "fern", "finch", "fjord", "forest", "fox", "garden", "glacier", "harbor", "heron", "hill", "island", "ivy", "juniper",
		"lagoon", "lake", "lark", "linden", "maple", "meadow", "mesa", "moss", "oak", "orchard", "otter", "pebble", "pine", "prairie", "raven",
		"reef", "ridge", "river", "robin", "sparrow", "spring", "spruce", "summit", "thistle", "tulip", "valley", "willow", "wren",
	}
)

// madeUpName returns a random name. attempt counts from 0; from 3 on the name ends in a number
// from a range that doubles each time, until a free name is found.
func madeUpName(attempt int) string {
	name := adjectives[rand.IntN(len(adjectives))] + "_" + nouns[rand.IntN(len(nouns))]
	if attempt > 2 {
		name += fmt.Sprint(rand.IntN(10 << attempt))
	}
	return name
}
