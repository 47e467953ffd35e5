package embedded

import (
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// sendBlob answers a GET with a blob, or a range of it, from its file. It reports false, and answers nothing, if the
// repository does not have the blob. Distribution would answer through a buffer of 4 MiB for each request.
func (r *Registry) sendBlob(w http.ResponseWriter, req *http.Request, at place) bool {
	asked := at.digest()
	own, err := r.links.canonical(req.Context(), at.repo, layers, asked)
	if err != nil {
		return false
	}
	f, err := os.Open(filepath.Join(r.dir, blobPath(own)))
	if err != nil {
		return false
	}
	defer f.Close()
	h := w.Header()
	h.Set("Docker-Distribution-Api-Version", "registry/2.0")
	h.Set("Docker-Content-Digest", asked.String())
	h.Set("Etag", `"`+asked.String()+`"`)
	h.Set("Cache-Control", "max-age=31536000") // content of a digest never changes
	h.Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, req, "", time.Time{}, f)
	return true
}
