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

// count says how many files there are in the image's root, and their bytes.
func (i *Image) count(entries []Entry) {
	for _, e := range entries {
		if e.Kind == KindFile {
			i.Files++
			i.Size += e.Size
		}
	}
}
