package service

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
)

// liveView adds a live stream's addresses. Publishing addresses get the host by which the client
// has reached the service.
func (h *rest) liveView(r *http.Request, s asset.Live) asset.Live {
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
	at := h.onAir(s.Name)
	s.HLS, s.DASH = at+"/hls/master.m3u8", at+"/dash/manifest.mpd"
	return s
}

func (h *rest) streams(w http.ResponseWriter, r *http.Request) error {
	all := h.live.List()
	for i := range all {
		all[i] = h.liveView(r, all[i])
	}
	answer(w, http.StatusOK, map[string]any{"streams": all})
	return nil
}

// begin makes a live stream.
func (h *rest) begin(w http.ResponseWriter, r *http.Request) error {
	var spec asset.LiveSpec
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&spec); err != nil {
		return &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: "the body is no stream in JSON: " + err.Error(), Next: "send {\"name\": …}, with \"loop\" and an asset's id for one that needs no publisher"}
	}
	s, err := h.live.Create(spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/live/"+s.Name)
	answer(w, http.StatusCreated, h.liveView(r, s))
	return nil
}

func (h *rest) stream(w http.ResponseWriter, r *http.Request) error {
	s, err := h.live.Get(r.PathValue("name"))
	if err == nil {
		answer(w, http.StatusOK, h.liveView(r, s))
	}
	return err
}

// end ends a live stream and deletes its data.
func (h *rest) end(w http.ResponseWriter, r *http.Request) error {
	if err := h.live.Remove(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
