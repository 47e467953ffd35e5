package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry"
)

// checksums is the name of the file in each directory with the checksums of everything below, in sha256sum's format.
const checksums = "SHA256SUMS"

// files serves every file at <upstream host>/<path>: prefix an address with ours.
func (s *Server) files(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	if err := s.file(w, r, sh); err != nil {
		plainError(w, err)
	}
}

func (s *Server) file(w http.ResponseWriter, r *http.Request, sh *snapshot) error {
	t, err := sh.filesOf.get(func() (*tree, error) {
		return s.buildFiles(context.WithoutCancel(r.Context()),
			sh.books)
	})
	if err != nil {
		return err
	}
	path := strings.TrimPrefix(r.URL.Path, "/files/")
	if l, ok := t.find(path); ok {
		return s.sendLeaf(w, r, l, "application/octet-stream")
	}
	if dir, ok := strings.CutSuffix(path, checksums); ok && isDir(dir) && len(t.under(dir)) > 0 {
		sendBytes(w, r, "text/plain; charset=utf-8", t.sums(dir))
		return nil
	}
	if isDir(path) && (path == "" || len(t.under(path)) > 0) {
		return s.render(w, r, "listing", t.listing("/files/", path))
	}
	if len(t.under(path+"/")) > 0 {
		http.Redirect(w, r, escapePath("/files/"+path)+"/", http.StatusMovedPermanently)
		return nil
	}
	return notFound(codeBlobUnknown, "no such file; /files/ lists all files")
}

func isDir(path string) bool { return path == "" || strings.HasSuffix(path, "/") }

// sums lists the files below dir. cleanPath removed all characters that a line cannot contain.
func (t *tree) sums(dir string) []byte {
	var b []byte
	for _, l := range t.under(dir) {
		if l.err == nil {
			b = append(b, l.blob.digest.Encoded()+"  "+l.path[len(dir):]+"\n"...)
		}
	}
	return b
}

// buildFiles locates the content of every file. A damaged file keeps its path and reports the damage on request.
func (s *Server) buildFiles(ctx context.Context, books []*book) (*tree, error) {
	t, taken := &tree{}, make(map[string]digest.Digest)
	for i := len(books) - 1; i >= 0; i-- { // later bundles first, as with tags
		b := books[i]
		index := b.reader.Index()
		for j := range index.Items {
			it := &index.Items[j]
			path, ok := filePath(index, it)
			if !ok {
				continue
			}
			l := leaf{path: path, title: it.Name}
			layer, err := b.layer(ctx, it.Descriptor, "")
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if l.blob = layer; err != nil {
				l.err = fmt.Errorf("%s: %w", it, err)
				l.blob.digest = it.Descriptor.Digest
				s.log.Error("a file is not served", "path", path, "error", l.err)
			}
			dir, name, _ := cutLast("/" + path)
			short := strings.TrimPrefix(string(l.blob.digest), "sha256:")
			t.add(l, taken, cleanPath(dir, bundle.PlatformString(it.Descriptor.Platform), name),
				cleanPath(dir, short[:min(len(short), 12)], name))
		}
	}
	t.sort()
	return t, nil
}

// filePath returns the path of a file, and for files that describe the bundle, a path under the bundle's own name.
func filePath(index bundle.Index, it *bundle.Item) (string, bool) {
	switch it.Kind {
	case bundle.KindFile:
		return upstreamFile(it), true
	case bundle.KindTool, bundle.KindManifest, bundle.KindLock, bundle.KindClosure, bundle.KindSBOM:
		platform := strings.ReplaceAll(bundle.PlatformString(it.Descriptor.Platform), "/", "-")
		return cleanPath("bundle", index.Name+"-"+index.Version, it.Kind, platform, it.Ref),
			it.Descriptor.ArtifactType == bundle.ArtifactTypeFile
	}
	return "", false
}

// packageDir holds operating system packages, with a directory for each distribution.
const packageDir = "packages/"

// upstreamFile turns a file's address into its path; a query, which may contain a secret, is replaced by its hash.
func upstreamFile(it *bundle.Item) string {
	if strings.HasPrefix(it.Ref, packageDir) {
		return cleanPath(it.Ref)
	}
	u, err := url.Parse(it.Ref)
	if err != nil || u.Host == "" {
		return cleanPath("local", bundle.PlatformString(it.Descriptor.Platform), strings.TrimPrefix(it.Ref, "local/"))
	}
	dir, name, _ := cutLast("/" + strings.Trim(u.Path, "/"))
	if u.RawQuery != "" {
		sum := sha256.Sum256([]byte(u.RawQuery))
		dir += "/q-" + hex.EncodeToString(sum[:6])
	}
	name = cmp.Or(name, it.Name)
	return cleanPath(registry.UpstreamPath(u.Host), dir, name)
}

// layer returns the blob of a manifest's layer with that media type, or of its first layer.
func (b *book) layer(ctx context.Context, d ocispec.Descriptor, mediaType string) (blob, error) {
	m, err := b.manifest(ctx, d)
	if err != nil {
		return blob{}, err
	}
	for _, l := range m.Layers {
		if mediaType != "" && l.MediaType != mediaType {
			continue
		}
		if have, ok := b.blob(l); ok {
			return have, nil
		}
		return blob{}, fmt.Errorf("the bundle has no blob %s", l.Digest)
	}
	return blob{}, fmt.Errorf("manifest %s has no layer %s", d.Digest, mediaType)
}

func (b *book) manifest(ctx context.Context, d ocispec.Descriptor) (ocispec.Manifest, error) {
	var m ocispec.Manifest
	data, err := b.read(ctx, d.Digest, maxManifest)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	return m, nil
}
