package serve

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry/htpasswd"
)

// Error codes of the distribution specification, section "Error Codes", and three others in common use.
const (
	codeBlobUnknown     = "BLOB_UNKNOWN"
	codeDigestInvalid   = "DIGEST_INVALID"
	codeManifestUnknown = "MANIFEST_UNKNOWN"
	codeNameInvalid     = "NAME_INVALID"
	codeNameUnknown     = "NAME_UNKNOWN"
	codeUnauthorized    = "UNAUTHORIZED"
	codeUnsupported     = "UNSUPPORTED"
	codeTooMany         = "TOOMANYREQUESTS"
	codePageInvalid     = "PAGINATION_NUMBER_INVALID"
	codeRangeInvalid    = "RANGE_INVALID"
	codeUnknown         = "UNKNOWN"
)

// An answer is an error with its status and code.
type answer struct {
	status  int
	code    string
	message string
}

// Error returns the message.
func (a *answer) Error() string { return a.message }

func notFound(code, message string) *answer { return &answer{http.StatusNotFound, code, message} }

// asAnswer returns the answer for an error.
func asAnswer(err error) *answer {
	var a *answer
	switch {
	case errors.As(err, &a):
		return a
	case errors.Is(err, htpasswd.ErrRefused):
		return &answer{http.StatusUnauthorized, codeUnauthorized, err.Error()}
	case errors.Is(err, htpasswd.ErrBusy):
		return &answer{http.StatusTooManyRequests, codeTooMany, err.Error()}
	case errors.Is(err, errRange):
		return &answer{http.StatusRequestedRangeNotSatisfiable, codeRangeInvalid, err.Error()}
	case errors.Is(err, bundle.ErrDamaged):
		return &answer{http.StatusInternalServerError, codeUnknown, err.Error() +
			": replace the server's copy of the bundle"}
	default:
		return &answer{http.StatusInternalServerError, codeUnknown, err.Error()}
	}
}

// registryError answers with the specification's error body.
func registryError(w http.ResponseWriter, err error) {
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	a := asAnswer(err)
	body, err := json.Marshal(struct {
		Errors []one `json:"errors"`
	}{[]one{{a.code, a.message}}})
	if err != nil {
		body = []byte(`{"errors":[{"code":"UNKNOWN"}]}`)
	}
	refuse(w, a, "application/json; charset=utf-8", append(body, '\n'))
}

func plainError(w http.ResponseWriter, err error) {
	a := asAnswer(err)
	refuse(w, a, "text/plain; charset=utf-8", []byte(a.message+"\n"))
}

func refuse(w http.ResponseWriter, a *answer, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Disposition")
	switch a.code {
	case codeUnauthorized:
		h.Set("WWW-Authenticate", htpasswd.Challenge)
	case codeTooMany:
		h.Set("Retry-After", htpasswd.Retry)
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // the client may be gone
}
