package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/plain"
	"github.com/kkbundle/kkbundle/registry"
)

// ociScheme is what the address of a bundle in a registry begins with.
const ociScheme = "oci://"

// An ociAddress is where a bundle is in a registry.
type ociAddress struct {
	repository string        // host[:port]/path
	tag        string        // "" where none is named
	digest     digest.Digest // of the manifest; "" where none is named
}

// isOCI says that a bundle is named by its place in a registry and not by a file.
func isOCI(path string) bool { return strings.HasPrefix(path, ociScheme) }

// parseOCI reads oci://HOST[:PORT]/PATH[:TAG][@DIGEST].
func parseOCI(text string) (ociAddress, error) {
	rest, ok := strings.CutPrefix(text, ociScheme)
	if !ok {
		return ociAddress{}, &usageError{fmt.Errorf("%s: a place in a registry is wanted: oci://HOST[:PORT]/PATH[:TAG]", plain.Line(text))}
	}
	fail := func(err error) (ociAddress, error) {
		return ociAddress{}, &usageError{fmt.Errorf("%s: %w", ociScheme+plain.Line(rest[strings.LastIndexByte(rest, '@')+1:]), err)}
	}
	a := ociAddress{repository: rest}
	if before, pinned, ok := strings.Cut(rest, "@sha256:"); ok {
		a.repository, a.digest = before, digest.Digest("sha256:"+pinned)
		if err := a.digest.Validate(); err != nil {
			return fail(err)
		}
	}
	if i := strings.LastIndexByte(a.repository, ':'); i > strings.IndexByte(a.repository, '/') && strings.Contains(a.repository, "/") {
		a.repository, a.tag = a.repository[:i], a.repository[i+1:]
		if err := registry.CheckTag(a.tag); err != nil {
			return fail(err)
		}
	}
	if err := registry.CheckRepository(a.repository); err != nil {
		return fail(err)
	}
	return a, nil
}

// String is the address as users write it.
func (a ociAddress) String() string {
	text := ociScheme + a.repository
	if a.tag != "" {
		text += ":" + a.tag
	}
	if a.digest != "" {
		text += "@" + a.digest.String()
	}
	return text
}

// reference is what names the bundle in its repository: a digest pins, whatever the tag.
func (a ociAddress) reference() string {
	switch {
	case a.digest != "":
		return a.digest.String()
	case a.tag != "":
		return a.tag
	}
	return name.DefaultTag
}

func (a ociAddress) host() string {
	host, _, _ := strings.Cut(a.repository, "/")
	return host
}

func (a ociAddress) repo() (name.Repository, error) {
	host, path, _ := strings.Cut(a.repository, "/")
	r, err := name.NewRegistry(host)
	if err != nil {
		return name.Repository{}, &usageError{err}
	}
	return r.Repo(path), nil
}

// notOCI refuses a place in a registry where a file is needed.
func notOCI(path string) error {
	if isOCI(path) {
		return &usageError{errors.New("a bundle in a registry is not read in place: bring it first with `kkbundle pull " + plain.Line(path) + "`")}
	}
	return nil
}
