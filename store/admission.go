package store

import "context"

type admissionKey struct{}

// WithAdmission returns a context under which [Store.PutImage] and [Store.TakeImage] call admit
// for each image that does not exist yet. Files and Size are known by then and no file of the
// image is on disk. An error refuses the image, and PutImage returns it. Otherwise done is
// called once the image is in the lists or could not be made.
func WithAdmission(ctx context.Context, admit func(*Image) (done func(), err error)) context.Context {
	return context.WithValue(ctx, admissionKey{}, admit)
}

func admitted(ctx context.Context, img *Image) (done func(), err error) {
	admit, ok := ctx.Value(admissionKey{}).(func(*Image) (done func(), err error))
	if !ok {
		return func() {}, nil
	}
	return admit(img)
}

type namingKey struct{}

// WithNaming returns a context under which [Store.PutImage] and [Store.Tag] call may before a
// name moves from one image to another. may runs inside the transaction, so its answer cannot
// become outdated; it must not change the store. An error refuses the move, and PutImage or Tag
// returns it; an image made for the name is removed again.
func WithNaming(ctx context.Context, may func(name string, from, to *Image) error) context.Context {
	return context.WithValue(ctx, namingKey{}, may)
}

// nameTag is putTag with the check of WithNaming.
func (t *tx) nameTag(ctx context.Context, k tag, d Digest) error {
	may, ok := ctx.Value(namingKey{}).(func(name string, from, to *Image) error)
	if from := t.next.byDigest[t.next.tags[k]]; ok && from != nil && from.Digest != d {
		if err := may(k.String(), from, t.next.byDigest[d]); err != nil {
			return err
		}
	}
	return t.putTag(k, d)
}

// count sets Files to the number of files in the image's root, and Size to their bytes.
func (i *Image) count(entries []Entry) {
	for j := range entries {
		if entries[j].Kind == KindFile {
			i.Files++
		}
	}
	i.Size = SizeOf(entries)
}

// SizeOf returns the bytes of the files. Files with the same object are names of one inode and
// count once. Files aside do not count.
func SizeOf(entries []Entry) (n int64) {
	type inode struct {
		digest   Digest
		mtime    int64
		mode     uint32
		uid, gid uint32
	}
	seen := make(map[inode]struct{}, len(entries))
	for i := range entries {
		e := &entries[i]
		key := inode{e.Digest, e.MTime, e.Mode, e.UID, e.GID}
		if _, again := seen[key]; again || !e.hasObject() || e.Aside {
			continue
		}
		seen[key] = struct{}{}
		n += e.Size
	}
	return n
}
