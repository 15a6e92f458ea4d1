package store

import "context"

type admissionKey struct{}

// WithAdmission returns a context under which [Store.PutImage] and [Store.TakeImage] ask
// admit about each image that is not there yet, once its Files and Size are known and before
// anything of it is on disk. An error refuses it, and is what they return; else done is
// called when the image is in the lists, or could not be made.
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

// WithNaming returns a context under which [Store.PutImage] and [Store.Tag] ask may before a
// name goes from the image that has it to another, when nothing can change any more: it must
// not change the store. An error refuses that, and is what they return; an image that was
// made for the name goes again.
func WithNaming(ctx context.Context, may func(name string, from, to *Image) error) context.Context {
	return context.WithValue(ctx, namingKey{}, may)
}

// nameTag is putTag for a caller who may have to be asked.
func (t *tx) nameTag(ctx context.Context, k tag, d Digest) error {
	may, ok := ctx.Value(namingKey{}).(func(name string, from, to *Image) error)
	if from := t.next.byDigest[t.next.tags[k]]; ok && from != nil && from.Digest != d {
		if err := may(k.String(), from, t.next.byDigest[d]); err != nil {
			return err
		}
	}
	return t.putTag(k, d)
}

// count says how many files there are in the image's root, and their bytes.
func (i *Image) count(entries []Entry) {
	for j := range entries {
		if entries[j].Kind == KindFile {
			i.Files++
		}
	}
	i.Size = SizeOf(entries)
}

// SizeOf returns the bytes of files, those of the same object once: they are names of one
// inode. What is aside does not count.
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
