package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"github.com/tus/tusd/v2/pkg/memorylocker"
	expslog "golang.org/x/exp/slog"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
)

// abandoned is the time without a byte after which an upload is given up.
const abandoned = 24 * time.Hour

// uploads returns a handler of tus 1.0, a protocol of resumable uploads, with creation,
// creation-with-upload, creation-defer-length and termination. The upload's id is its asset's id,
// and the bytes go directly to the asset's source. dir holds the tus handler's record of each
// upload.
func (s *Service) uploads(dir string, log *slog.Logger) (http.Handler, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.abandon(dir, log); err != nil {
		return nil, err
	}
	composer := handler.NewStoreComposer()
	store := &uploadStore{FileStore: filestore.New(dir), most: s.cfg.MostBytes, room: s.room, discard: func(id string) error { return s.discardUpload(dir, id) }}
	composer.UseCore(store)
	composer.UseTerminater(store)
	composer.UseLengthDeferrer(store)
	memorylocker.New().UseIn(composer)
	h, err := handler.NewUnroutedHandler(handler.Config{
		StoreComposer: composer, BasePath: "/v1/uploads/", MaxSize: s.cfg.MostBytes, DisableDownload: true, DisableConcatenation: true,
		Logger:                  expslog.New(expslog.NewTextHandler(io.Discard, nil)),
		PreUploadCreateCallback: s.createUpload,
		PreFinishResponseCallback: func(e handler.HookEvent) (handler.HTTPResponse, error) {
			return handler.HTTPResponse{}, tusError(s.uploaded(e.Upload.ID))
		},
		PreUploadTerminateCallback: s.terminateUpload,
		NotifyTerminatedUploads:    true,
	})
	if err != nil {
		return nil, fmt.Errorf("uploads: %w", err)
	}
	s.group.Go(func() { s.tidyUploads(dir, log, h.TerminatedUploads) })
	routes := h.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead || r.Method == http.MethodPatch {
			if err := s.finish(r.Context(), store, path.Base(r.URL.Path)); err != nil {
				wire := wireError(err)
				answer(w, wire.Status, api.ErrorBody{Error: wire})
				return
			}
		}
		routeUpload(h, w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { routes.ServeHTTP(&tusErrors{ResponseWriter: w}, r) }), nil
}

// createUpload checks a new upload and makes its asset.
func (s *Service) createUpload(e handler.HookEvent) (handler.HTTPResponse, handler.FileInfoChanges, error) {
	m := e.Upload.MetaData
	order, err := s.parseOrder(m["filename"], m["codec"], m["protection"])
	if err != nil {
		return handler.HTTPResponse{}, handler.FileInfoChanges{}, tusError(err)
	}
	if e.Upload.Size == 0 && !e.Upload.SizeIsDeferred {
		return handler.HTTPResponse{}, handler.FileInfoChanges{}, tusError(ErrEmpty)
	}
	id := asset.NewID()
	if err := s.room(e.Upload.Size); err != nil {
		return handler.HTTPResponse{}, handler.FileInfoChanges{}, tusError(err)
	}
	if err := s.Expect(id, order, e.Upload.Size); err != nil {
		return handler.HTTPResponse{}, handler.FileInfoChanges{}, tusError(err)
	}
	return handler.HTTPResponse{}, handler.FileInfoChanges{ID: id, Storage: map[string]string{filestore.StorageKeyPath: s.SourcePath(id)}}, nil
}

// terminateUpload refuses to end a finished upload.
func (s *Service) terminateUpload(e handler.HookEvent) (handler.HTTPResponse, error) {
	if a := s.library.Get(e.Upload.ID); a != nil && a.State != asset.Uploading {
		return handler.HTTPResponse{}, handler.NewError("ERR_UPLOAD_FINISHED", "the upload is an asset now: delete that", http.StatusConflict)
	}
	return handler.HTTPResponse{}, nil
}

// tidyUploads removes the assets of terminated and, every hour, of expired uploads until the service
// stops.
func (s *Service) tidyUploads(dir string, log *slog.Logger, terminated <-chan handler.HookEvent) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.expire(dir, log, now)
		case e := <-terminated:
			if err := s.Remove(e.Upload.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
				log.Error("remove what was not uploaded", "asset", e.Upload.ID, "error", err)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// routeUpload routes a request. The handler's own router does not answer 405 with the allowed methods.
func routeUpload(h *handler.UnroutedHandler, w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "":
		h.PostFile(w, r)
	case r.URL.Path == "":
		w.Header().Set("Allow", "POST, OPTIONS")
		http.Error(w, "POST creates an upload", http.StatusMethodNotAllowed)
	case r.Method == http.MethodHead:
		h.HeadFile(w, r)
	case r.Method == http.MethodPatch:
		h.PatchFile(w, r)
	case r.Method == http.MethodDelete:
		h.DelFile(w, r)
	default:
		w.Header().Set("Allow", "HEAD, PATCH, DELETE, OPTIONS")
		http.Error(w, "HEAD, PATCH or DELETE an upload", http.StatusMethodNotAllowed)
	}
}

// finish starts the work on a complete upload whose end could not be recorded earlier, since the
// disk was full. All other uploads are left alone.
func (s *Service) finish(ctx context.Context, store *uploadStore, id string) error {
	if a := s.library.Get(id); a == nil || a.State != asset.Uploading {
		return nil
	}
	upload, err := store.GetUpload(ctx, id)
	if err != nil {
		return nil //nolint:nilerr // the handler tells of it
	}
	info, err := upload.GetInfo(ctx)
	if err != nil || info.SizeIsDeferred || info.Offset != info.Size {
		return err
	}
	return s.uploaded(id)
}

// uploaded calls Uploaded, and succeeds if the work has already started.
func (s *Service) uploaded(id string) error {
	_, err := s.Uploaded(id)
	if errors.Is(err, ErrState) {
		return nil
	}
	return err
}

// discardUpload deletes an upload and its tus record.
func (s *Service) discardUpload(dir, id string) error {
	err := s.Remove(id)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if gone := os.Remove(filepath.Join(dir, id+".info")); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// expire deletes abandoned uploads.
func (s *Service) expire(dir string, log *slog.Logger, now time.Time) {
	all := s.library.List()
	for _, a := range all {
		if a.State != asset.Uploading {
			continue
		}
		last := a.Created
		if file, err := os.Stat(s.SourcePath(a.ID)); err == nil && file.ModTime().After(last) {
			last = file.ModTime()
		}
		if now.Sub(last) <= abandoned {
			continue
		}
		log.Info("an upload is given up", "asset", a.ID, "name", a.Name)
		if err := s.discardUpload(dir, a.ID); err != nil {
			log.Error("give an upload up", "asset", a.ID, "error", err)
		}
	}
}

// abandon deletes abandoned uploads and the records of gone assets at start. It starts the work
// on uploads that were complete just before a crash.
func (s *Service) abandon(dir string, log *slog.Logger) error {
	infos, err := filepath.Glob(filepath.Join(dir, "*.info"))
	if err != nil {
		return err
	}
	store := filestore.New(dir)
	alive := map[string]bool{}
	for _, info := range infos {
		id := filepath.Base(info[:len(info)-len(".info")])
		keep, err := s.resume(store, id, info, log)
		if err != nil {
			return err
		}
		alive[id] = keep
	}
	all := s.library.List()
	for _, a := range all {
		if a.State == asset.Uploading && !alive[a.ID] {
			if err := s.library.Remove(a.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// resume reports whether an upload goes on. It removes the record of a gone asset, and starts the
// work on a complete upload.
func (s *Service) resume(store filestore.FileStore, id, info string, log *slog.Logger) (bool, error) {
	a := s.library.Get(id)
	if a == nil {
		return false, os.Remove(info)
	}
	if a.State != asset.Uploading {
		return false, nil
	}
	upload, err := store.GetUpload(context.Background(), id)
	if err != nil {
		log.Warn("an upload is given up", "asset", id, "error", err)
		return false, nil
	}
	known, err := upload.GetInfo(context.Background())
	if err != nil {
		return false, err
	}
	file, err := os.Stat(s.SourcePath(id))
	if err != nil || time.Since(file.ModTime()) > abandoned {
		return false, nil //nolint:nilerr // without its file an upload cannot go on
	}
	if !known.SizeIsDeferred && known.Offset == known.Size {
		if err := s.uploaded(id); err != nil { // the client's next request tries again
			log.Warn("an upload is not worked on yet", "asset", id, "error", err)
		}
	}
	return true, nil
}
