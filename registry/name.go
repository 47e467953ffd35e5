package registry

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

const (
	maxNameLen   = 255 // of a repository name; the limit of registries
	maxTagLen    = 128 // of a tag, by the distribution specification's grammar
	localHost    = "local"
	defaultTag   = "latest"
	shortHashLen = 12 // hex digits in place of invalid parts of a name
)

// The grammars of repository names and tags in the distribution specification.
var (
	nameGrammar = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagGrammar  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// Destination returns the place of an item for Push: registry is HOST[:PORT][/PREFIX], and the path under it consists
// of upstream host and path.
//
//   - image docker.io/library/nginx:1.29 -> HOST/docker.io/library/nginx:1.29. A port in the upstream host becomes
//     _port (registry.lab:5000 -> registry.lab_5000). With a tag and a digest the tag is used; with a digest alone the
//     result is a name.Digest and Push sets no tag.
//   - chart https://kubernetes.github.io/ingress-nginx/ingress-nginx:4.14.1 ->
//     HOST/kubernetes.github.io/ingress-nginx/ingress-nginx:4.14.1, so that helm pull finds it; "+" in a version
//     becomes "_", as in Helm.
//   - file https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubeadm ->
//     HOST/dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubeadm with the item's version as tag, or "latest". Names are
//     lower-cased, invalid characters become "-", and a query is replaced by its hash, because it may hold a secret.
//   - a referrer has the repository of its image, and its digest or upstream's tag.
//   - local charts and files -> HOST/local/NAME; a local file for one platform has the platform in its tag.
//
// The result depends only on the arguments. Two items with different content can have the same destination if their
// names differ only in invalid characters: Push refuses those before it sends anything. Items of other kinds have no
// destination.
//
// Rules change the path below HOST[/PREFIX]; the first match applies.
func Destination(registry string, it bundle.Item, rules ...Rename) (name.Reference, error) {
	t, err := parseTarget(registry)
	if err != nil {
		return nil, err
	}
	t.rules = rules
	return t.destination(it)
}

// UpstreamPath returns the first path component of Push's destinations for an upstream host: the host itself, with a
// port as _port. A mirror's configuration for that host must append it.
func UpstreamPath(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i] + "_" + host[i+1:]
	}
	return component(strings.NewReplacer("[", "", "]", "").Replace(host)) // IPv6 brackets
}

// A target is a registry and the common path of all items.
type target struct {
	registry name.Registry
	prefix   string
	rules    []Rename
}

// CheckTarget checks the name of a registry, HOST[:PORT][/PREFIX], without contacting it.
func CheckTarget(s string) error {
	_, err := parseTarget(s)
	return err
}

func parseTarget(s string) (target, error) {
	host, prefix, _ := strings.Cut(strings.TrimSuffix(s, "/"), "/")
	if scheme, _, found := strings.Cut(s, "://"); found {
		return target{}, fmt.Errorf("registry %q: write HOST[:PORT][/PREFIX], without %s://", withoutUser(s), scheme)
	}
	if strings.Contains(s, "@") { // a password may have a slash in it
		return target{}, fmt.Errorf("registry %q: write HOST[:PORT][/PREFIX], and give user and password apart: --username and --password-stdin, or kkbundle login",
			withoutUser(s))
	}
	if host == "" {
		return target{}, fmt.Errorf("registry %q: write HOST[:PORT][/PREFIX]", s)
	}
	registry, err := name.NewRegistry(host)
	if err != nil {
		return target{}, fmt.Errorf("registry %q: write HOST[:PORT][/PREFIX]: %w", s, err)
	}
	if prefix != "" && (!validName(prefix) || len(prefix) > maxNameLen/2) {
		return target{}, fmt.Errorf(
			"registry %q: prefix %q is not a repository name: use lower-case letters, digits, and . _ - between them",
			s, prefix)
	}
	return target{registry: registry, prefix: prefix}, nil
}

// withoutUser removes a possible password before a message repeats an address.
func withoutUser(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if scheme == "" {
		return rest
	}
	return scheme + "://" + rest
}

func (t target) String() string {
	if t.prefix == "" {
		return t.registry.RegistryStr()
	}
	return t.registry.RegistryStr() + "/" + t.prefix
}

func (t target) destination(it bundle.Item) (name.Reference, error) {
	switch it.Kind {
	case bundle.KindImage:
		return t.image(it)
	case bundle.KindReferrer:
		return t.referrer(it)
	case bundle.KindChart:
		return t.chart(it)
	case bundle.KindFile:
		return t.file(it)
	case bundle.KindGit:
		return nil, fmt.Errorf("%s: a Git repository is not pushed to a registry; use push --git", it)
	default:
		return nil, fmt.Errorf("%s: items of this kind describe the bundle and are not pushed", it)
	}
}

func (t target) image(it bundle.Item) (name.Reference, error) {
	r, err := parseImage(it.Ref)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", it, err)
	}
	repo, err := t.repository(UpstreamPath(r.host)+"/"+r.path, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", it, err)
	}
	if r.digest != "" && r.tag == "" {
		return repo.Digest(string(r.digest)), nil
	}
	r.tag = cmp.Or(r.tag, defaultTag)
	return repo.Tag(r.tag), nil
}

// referrer puts a referrer into its image's repository: under its own digest, or under cosign's tag with the image's
// digest.
func (t target) referrer(it bundle.Item) (name.Reference, error) {
	ref, err := t.image(it)
	if _, tagged := ref.(name.Tag); err != nil || tagged && !strings.Contains(it.Ref, "@") {
		return ref, err
	}
	return ref.Context().Digest(string(it.Descriptor.Digest)), nil
}

// An imageRef is a fully qualified image reference in its parts; tag and digest may be empty.
type imageRef struct {
	host, path, tag string
	digest          digest.Digest
}

func parseImage(ref string) (imageRef, error) {
	var r imageRef
	rest, pin, pinned := strings.Cut(ref, "@")
	if r.digest = digest.Digest(pin); pinned && r.digest.Validate() != nil {
		return r, errors.New("the reference ends in something that is not a digest")
	}
	host, path, ok := strings.Cut(rest, "/")
	if !ok || host == "" {
		return r, errors.New("the reference has no host: want HOST/PATH:TAG")
	}
	path, r.tag, ok = strings.Cut(path, ":")
	if ok && !tagGrammar.MatchString(r.tag) {
		return r, fmt.Errorf("tag %q is not valid in registries", r.tag)
	}
	if !validName(path) {
		return r, fmt.Errorf("path %q is not a repository name", path)
	}
	r.host, r.path = host, path
	return r, nil
}

func (t target) chart(it bundle.Item) (name.Reference, error) {
	ref, version := it.Ref, it.Version
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref, version = ref[:i], ref[i+1:]
	}
	repo, err := t.repository(urlPath(ref), true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", it, err)
	}
	return repo.Tag(tagOf(version)), nil
}

func (t target) file(it bundle.Item) (name.Reference, error) {
	repo, err := t.repository(urlPath(it.Ref), true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", it, err)
	}
	version := it.Version
	if p := bundle.PlatformString(it.Descriptor.Platform); p != "" && isLocal(it.Ref) {
		version = cmp.Or(version, defaultTag)
		version += "-" + strings.ReplaceAll(p, "/", "-")
	}
	return repo.Tag(tagOf(version)), nil
}

func isLocal(ref string) bool {
	return strings.HasPrefix(ref, localHost+"/") || strings.HasPrefix(ref, "file:")
}

// urlPath turns an address into a repository path, host first.
func urlPath(ref string) string {
	if rest, ok := strings.CutPrefix(ref, localHost+"/"); ok {
		return joinComponents(localHost, rest)
	}
	u, err := url.Parse(ref)
	if err != nil { // not an address: every part of it is still a name
		return joinComponents(localHost, ref)
	}
	host := u.Host
	host = cmp.Or(host, localHost)
	path := u.Path
	if u.Opaque != "" {
		path = u.Opaque
	}
	p := joinComponents(UpstreamPath(host), path)
	if u.RawQuery != "" {
		p += "/q-" + shortHash(u.RawQuery)
	}
	return p
}

func joinComponents(host, path string) string {
	parts := []string{host}
	for c := range strings.SplitSeq(path, "/") {
		if c != "" {
			parts = append(parts, component(c))
		}
	}
	return strings.Join(parts, "/")
}

// component turns any text into a path component: lower case, with single separators between letters or digits. Text
// without valid characters is replaced by its hash.
func component(s string) string {
	var b strings.Builder
	sep := ""
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			if b.Len() > 0 {
				b.WriteString(separator(sep))
			}
			b.WriteRune(r)
			sep = ""
		case r == '.', r == '_', r == '-':
			sep += string(r)
		default:
			sep += "-"
		}
	}
	if b.Len() == 0 {
		return "x-" + shortHash(s)
	}
	return b.String()
}

// separator keeps valid separators between letters and digits: ".", "_", "__" or dashes; others become one dash.
func separator(s string) string {
	if s == "" || s == "." || s == "_" || s == "__" || strings.Trim(s, "-") == "" {
		return s
	}
	return "-"
}

// repository returns path under the target. Too long a path is an error for images, whose names others must find; for
// files and charts it is shortened with a hash.
func (t target) repository(path string, shorten bool) (name.Repository, error) {
	full := rename(t.rules, path)
	if full == "" {
		return name.Repository{}, fmt.Errorf("the name %q has no valid characters: choose another one with --rename",
			path)
	}
	if t.prefix != "" {
		full = t.prefix + "/" + full
	}
	if len(full) > maxNameLen && shorten {
		full = strings.TrimRight(full[:maxNameLen-shortHashLen-1], "-._/") + "-" + shortHash(full)
	}
	if len(full) > maxNameLen {
		return name.Repository{},
			fmt.Errorf("the name at %s would have %d characters; registries allow at most %d: use a shorter prefix",
				t.registry, len(full), maxNameLen)
	}
	if !validName(full) {
		return name.Repository{}, fmt.Errorf("%q is not a repository name", full)
	}
	return t.registry.Repo(full), nil
}

// tagOf turns a version into a tag; an empty version becomes "latest".
func tagOf(version string) string {
	if version == "" {
		return defaultTag
	}
	tag := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		case r == '+':
			return '_'
		default:
			return '-'
		}
	}, version)
	if tag[0] == '.' || tag[0] == '-' {
		tag = "_" + tag
	}
	if len(tag) > maxTagLen {
		tag = tag[:maxTagLen-shortHashLen-1] + "-" + shortHash(version)
	}
	return tag
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:shortHashLen]
}

func validName(s string) bool { return len(s) <= maxNameLen && nameGrammar.MatchString(s) }
