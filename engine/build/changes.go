package build

import (
	"strconv"

	"github.com/fre-engine/fre/store"
)

// imageDone records an action on images. name is the name in the request, "" for the images' own
// names.
func (l *Library) imageDone(a store.ChangeAction, name string, images ...*store.Image) {
	changes := make([]store.Change, len(images))
	for i, img := range images {
		changes[i] = store.Change{Kind: store.ChangeImage, Action: a, ID: string(img.Digest), Name: name, Config: img.Config}
		if name == "" && len(img.Names) > 0 {
			changes[i].Name = img.Names[0]
		}
	}
	l.store.Changes().Add(changes...)
}

// pruned records a prune of a kind of objects and the number of freed bytes.
func (l *Library) pruned(kind store.ChangeKind, bytes int64) {
	l.store.Changes().Add(store.Change{Kind: kind, Action: store.ActionPrune, Attributes: map[string]string{"bytes": strconv.FormatInt(bytes, 10)}})
}
