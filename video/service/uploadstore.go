package service

import (
	"context"
	"errors"
	"io"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
)

// uploadStore stores uploads in files. Beyond filestore it limits an upload to its announced and
// allowed size, whatever length a request claims, and to the disk's room. It reports a full disk
// as such, and deletes an upload that could not be created.
type uploadStore struct {
	filestore.FileStore
	most    int64 // size limit of an upload, in bytes
	room    func(bytes int64) error
	discard func(id string) error
}

// upload is an upload in an uploadStore.
type upload struct {
	handler.Upload
	most int64
	room func(bytes int64) error
}

// NewUpload creates an upload.
func (s *uploadStore) NewUpload(ctx context.Context, info handler.FileInfo) (handler.Upload, error) {
	u, err := s.FileStore.NewUpload(ctx, info)
	if err != nil {
		return nil, tusError(errors.Join(err, s.discard(info.ID)))
	}
	return &upload{u, s.most, s.room}, nil
}

// GetUpload returns an existing upload.
func (s *uploadStore) GetUpload(ctx context.Context, id string) (handler.Upload, error) {
	u, err := s.FileStore.GetUpload(ctx, id)
	if err != nil {
		return nil, err
	}
	return &upload{u, s.most, s.room}, nil
}

// AsTerminatableUpload implements handler.TerminaterDataStore.
func (s *uploadStore) AsTerminatableUpload(u handler.Upload) handler.TerminatableUpload {
	return s.FileStore.AsTerminatableUpload(inner(u))
}

// AsLengthDeclarableUpload implements handler.LengthDeferrerDataStore.
func (s *uploadStore) AsLengthDeclarableUpload(u handler.Upload) handler.LengthDeclarableUpload {
	return s.FileStore.AsLengthDeclarableUpload(inner(u))
}

func inner(u handler.Upload) handler.Upload {
	if own, ok := u.(*upload); ok {
		return own.Upload
	}
	return u
}

// WriteChunk appends the bytes of src. More bytes than allowed are handler.ErrSizeExceeded.
func (u *upload) WriteChunk(ctx context.Context, offset int64, src io.Reader) (int64, error) {
	info, err := u.GetInfo(ctx)
	if err != nil {
		return 0, err
	}
	most := u.most
	if !info.SizeIsDeferred {
		most = min(most, info.Size)
	}
	begin := offset
	for offset < most {
		piece := min(most-offset, roomPiece)
		if err := u.room(piece); err != nil {
			return offset - begin, tusError(err)
		}
		n, err := u.Upload.WriteChunk(ctx, offset, io.LimitReader(src, piece))
		offset += n
		if err != nil {
			return offset - begin, tusError(err)
		}
		if n < piece {
			return offset - begin, nil
		}
	}
	if more, _ := io.ReadFull(src, make([]byte, 1)); more > 0 {
		return offset - begin, handler.ErrSizeExceeded
	}
	return offset - begin, nil
}

// tusError converts an error for the tus handler.
func tusError(err error) error {
	if err == nil {
		return nil
	}
	var known handler.Error
	if errors.As(err, &known) {
		return known
	}
	wire := wireError(err)
	return handler.NewError(string(wire.Code), wire.Message, wire.Status)
}
