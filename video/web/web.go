// Package web is the page of the video service: upload, progress, player. The player is hls.js
// 1.7.4 (Apache-2.0, page/hls.LICENSE): the npm package's file without the sourceMappingURL.
package web

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed page
var files embed.FS

// Handler serves the page at "/". The page loads files from this server only.
func Handler() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil { // only for an invalid name: never
		panic(err)
	}
	server := http.FileServerFS(page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; media-src 'self' blob:; worker-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		server.ServeHTTP(w, r)
	})
}
