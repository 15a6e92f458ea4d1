package service

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/live"
)

// liveAPI is the part of the API that is about live streams.
type liveAPI struct {
	server  *live.Server
	address func(name string) string
}

// routes returns the routes of live streams.
func (h *liveAPI) routes() map[string]route {
	return map[string]route{"GET /v1/live": h.list, "POST /v1/live": h.create, "GET /v1/live/{name}": h.get, "DELETE /v1/live/{name}": h.remove}
}

// view adds a live stream's addresses. Publishing addresses get the host by which the client
// has reached the service.
func (h *liveAPI) view(r *http.Request, s asset.Live) asset.Live {
	host := (&url.URL{Host: r.Host}).Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if s.SRT != "" {
		s.SRT = "srt://" + host + s.SRT
		s.OBS = &asset.OBS{Server: s.SRT}
	}
	if s.RTMP != "" {
		s.RTMP = "rtmp://" + host + s.RTMP
		at := strings.LastIndexByte(s.RTMP, '/')
		s.OBS = &asset.OBS{Server: s.RTMP[:at], Key: s.RTMP[at+1:]}
	}
	at := h.address(s.Name)
	s.HLS, s.DASH = at+"/hls/master.m3u8", at+"/dash/manifest.mpd"
	return s
}

func (h *liveAPI) list(w http.ResponseWriter, r *http.Request) error {
	all := h.server.List()
	for i := range all {
		all[i] = h.view(r, all[i])
	}
	answer(w, http.StatusOK, map[string]any{"streams": all})
	return nil
}

// create makes a live stream.
func (h *liveAPI) create(w http.ResponseWriter, r *http.Request) error {
	var spec asset.LiveSpec
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&spec); err != nil {
		return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: "the body is no stream in JSON: " + err.Error(), Next: "send {\"name\": …}, with \"loop\" and an asset's id for one that needs no publisher"}
	}
	s, err := h.server.Create(spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/live/"+s.Name)
	answer(w, http.StatusCreated, h.view(r, s))
	return nil
}

func (h *liveAPI) get(w http.ResponseWriter, r *http.Request) error {
	s, err := h.server.Get(r.PathValue("name"))
	if err == nil {
		answer(w, http.StatusOK, h.view(r, s))
	}
	return err
}

// remove ends a live stream and deletes its data.
func (h *liveAPI) remove(w http.ResponseWriter, r *http.Request) error {
	if err := h.server.Remove(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
