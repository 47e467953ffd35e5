package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/refname"
)

// treeGit is the directory of Git repositories in a tree.
const treeGit = "git"

// GitName returns the name of the directory of a Git repository.
func GitName(it bundle.Item) string { return PlainName(it.Name) + ".git" }

// UnfinishedGit returns the names in the directory of a Git repository before it is one. HEAD comes last: without it,
// git knows no repository there.
func UnfinishedGit() []string {
	return []string{
		"objects", "refs", "config", "packed-refs", "shallow", ".config.part", ".packed-refs.part", ".shallow.part", ".HEAD.part",
	}
}

// Git writes a Git repository into a directory: a bare repository of one pack, which git clone takes.
func Git(ctx context.Context, r *bundle.Reader, dir string, it bundle.Item) (err error) {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := writeGit(ctx, r, root, ".", it); err != nil {
		return fmt.Errorf("extract %s to %s: %w", it, dir, err)
	}
	return nil
}

// writeGit writes a repository below a directory of root.
func writeGit(ctx context.Context, r *bundle.Reader, root *os.Root, dir string, it bundle.Item) error {
	parts, document, err := r.Git(ctx, it, git.MaxDocument)
	if err != nil {
		return err
	}
	refs, d, err := git.ParseDocument(document)
	if err != nil {
		return err
	}
	for _, empty := range []string{"refs/heads", "refs/tags", "objects/info"} {
		if err := root.MkdirAll(path.Join(dir, empty), 0o755); err != nil {
			return err
		}
	}
	pack := path.Join(dir, "objects/pack/pack-"+parts.Pack.Digest.Encoded()[:40])
	for _, one := range []struct {
		name string
		blob ocispec.Descriptor
	}{{pack + ".pack", parts.Pack}, {pack + ".idx", parts.Index}} {
		if err := writeFile(root, one.name, 0o444, func(w io.Writer) error {
			rc, err := r.Blob(ctx, one.blob.Digest, 0)
			if err != nil {
				return err
			}
			_, err = io.Copy(w, rc)
			return errors.Join(err, rc.Close())
		}); err != nil {
			return err
		}
	}
	texts := [][2]string{
		{"config", "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"},
		{"packed-refs", packedRefs(refs)},
	}
	if len(d.Shallow) > 0 {
		texts = append(texts, [2]string{"shallow", strings.Join(d.Shallow, "\n") + "\n"})
	}
	head := d.Head
	if head == "" {
		head = refname.Branches + "main" // of a repository of tags only: no branch yet
	}
	for _, one := range append(texts, [2]string{git.Head, "ref: " + head + "\n"}) {
		if err := writeFile(root, path.Join(dir, one[0]), 0o644, func(w io.Writer) error {
			_, err := io.WriteString(w, one[1])
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// packedRefs returns the content of the file of all refs.
func packedRefs(refs []git.Ref) string {
	var b strings.Builder
	b.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for _, r := range refs {
		fmt.Fprintf(&b, "%s %s\n", r.ID, r.Name)
		if !r.Peeled.IsZero() {
			fmt.Fprintf(&b, "^%s\n", r.Peeled)
		}
	}
	return b.String()
}
