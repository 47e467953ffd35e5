package usage

import (
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry"
)

// Scheme begins the address of a bundle in a registry.
const Scheme = "oci://"

// An Address names a bundle in a registry.
type Address struct {
	Repository string        // host[:port]/path
	Tag        string        // "" if absent
	Digest     digest.Digest // of the manifest; "" if absent
}

// IsAddress reports whether path is the address of a bundle in a registry, not a file.
func IsAddress(path string) bool { return strings.HasPrefix(path, Scheme) }

// ParseAddress parses oci://HOST[:PORT]/PATH[:TAG][@DIGEST].
func ParseAddress(text string) (Address, error) {
	rest, ok := strings.CutPrefix(text, Scheme)
	if !ok {
		return Address{}, Errorf("%s: want an address in a registry: oci://HOST[:PORT]/PATH[:TAG]", plain.Line(text))
	}
	fail := func(err error) (Address, error) {
		return Address{}, Errorf("%s: %w", Scheme+plain.Line(rest[strings.LastIndexByte(rest, '@')+1:]), err)
	}
	a := Address{Repository: rest}
	if before, pinned, ok := strings.Cut(rest, "@sha256:"); ok {
		a.Repository, a.Digest = before, digest.Digest("sha256:"+pinned)
		if err := a.Digest.Validate(); err != nil {
			return fail(err)
		}
	}
	if i := strings.LastIndexByte(a.Repository, ':'); i > strings.IndexByte(a.Repository, '/') &&
		strings.Contains(a.Repository, "/") {
		a.Repository, a.Tag = a.Repository[:i], a.Repository[i+1:]
		if err := registry.CheckTag(a.Tag); err != nil {
			return fail(err)
		}
	}
	if err := registry.CheckRepository(a.Repository); err != nil {
		return fail(err)
	}
	return a, nil
}

// String returns the address in the form that ParseAddress reads.
func (a Address) String() string {
	text := Scheme + a.Repository
	if a.Tag != "" {
		text += ":" + a.Tag
	}
	if a.Digest != "" {
		text += "@" + a.Digest.String()
	}
	return text
}

// Reference returns the digest, else the tag, else the default tag.
func (a Address) Reference() string {
	switch {
	case a.Digest != "":
		return a.Digest.String()
	case a.Tag != "":
		return a.Tag
	}
	return name.DefaultTag
}

// Host returns the registry's host and port.
func (a Address) Host() string {
	host, _, _ := strings.Cut(a.Repository, "/")
	return host
}

// Repo returns the repository for requests.
func (a Address) Repo() (name.Repository, error) {
	host, path, _ := strings.Cut(a.Repository, "/")
	r, err := name.NewRegistry(host)
	if err != nil {
		return name.Repository{}, &Error{Err: err}
	}
	return r.Repo(path), nil
}

// CheckFile returns an error if path is an address in a registry.
func CheckFile(path string) error {
	if IsAddress(path) {
		return Errorf("a bundle in a registry cannot be read in place: run `kkbundle pull %s` first", plain.Line(path))
	}
	return nil
}
