package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/proof/provenance"
)

// overwriteHelp is the part of the help of commands that know the bundle before they write it.
const overwriteHelp = `An existing file is replaced if it is the bundle to write: the same digest. Any other needs --force.`

// An overwrite is the flag --force of commands that write where the user says. Without it, they replace only files
// with the content that they are about to write, so that a command can be run again.
type overwrite struct{ force bool }

func (o *overwrite) add(f *pflag.FlagSet) {
	f.BoolVarP(&o.force, "force", "f", false, "replace an existing file")
}

// refused returns the error for an existing path. A reason completes the sentence after "exists".
func refused(path, reason string) error {
	return usage.Errorf("%s exists%s: name another file with -o, or replace it with --force", plain.Line(path), reason)
}

// file returns an error if path exists and --force is not given. disk.CheckOutput reports directories and devices.
func (o overwrite) file(path string) error {
	if o.force || !occupied(path) {
		return nil
	}
	return refused(path, "")
}

// content returns an error if path is a file with other content than want and --force is not given.
func (o overwrite) content(path string, want []byte) error {
	if o.force || !occupied(path) {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(want)) {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
			return nil
		}
	}
	return refused(path, " with other content")
}

// directory returns an error if path is a directory with content and --force is not given. A directory with nothing but
// entries of unfinished is the rest of an interrupted run, which continues there.
func (o overwrite) directory(path string, unfinished ...string) error {
	entries, err := os.ReadDir(path)
	switch {
	case o.force || errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot write %s: %w", path, usage.FileError(err))
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !slices.Contains(unfinished, e.Name()) }) {
		return nil
	}
	return usage.Errorf("directory %s is not empty: name another one with -o, or write into it with --force",
		plain.Line(path))
}

// bundle returns the identity of the bundle that is at path, in one file or in parts, or "". Files there are refused
// unless they are a bundle for which differs returns "", or with --force.
func (o overwrite) bundle(g *globals, path string, differs func(r *bundle.Reader) string) (digest.Digest, error) {
	found, err := occupant(path)
	if found == "" || err != nil {
		return "", err
	}
	r, err := g.openUnchecked(path)
	var reason string
	switch {
	case err == nil:
		defer r.Close()
		if o.force {
			return r.Digest(), nil
		}
		if reason = differs(r); reason != "" {
			break
		}
		surplus, err := parts.SurplusParts(path)
		if err != nil || len(surplus) == 0 {
			return r.Digest(), err
		}
		return "", refused(surplus[0], " and is no part of the bundle beside it")
	case o.force:
		return "", nil
	case errors.Is(err, bundle.ErrDamaged):
		reason = "it is not a whole bundle"
	default:
		reason = plain.Line(err.Error())
	}
	return "", refused(found, " and is not the bundle to write ("+reason+")")
}

// sameBundle is the comparison of commands that know the identity of the bundle that they write.
func sameBundle(want digest.Digest) func(*bundle.Reader) string {
	return func(r *bundle.Reader) string {
		if r.Digest() == want {
			return ""
		}
		return fmt.Sprintf("it is %s, %s", bundle.FileName(r.Index().Name, r.Index().Version), r.Digest())
	}
}

// with is bundle for the bundle of an index.
func (o overwrite) with(g *globals, path string, x bundle.Index) error {
	data, err := x.Marshal()
	if err == nil {
		_, err = o.bundle(g, path, sameBundle(digest.FromBytes(data)))
	}
	return err
}

// pulled refuses files at path, and beside it, that are not those of the bundle that was pulled to another place.
func (o overwrite) pulled(g *globals, from, path string, identity digest.Digest) error {
	if _, err := o.bundle(g, path, sameBundle(identity)); err != nil {
		return err
	}
	signature, err := os.ReadFile(sidecarName(from, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = o.content(sidecarName(path, ""), signature)
	}
	return err
}

// delta refuses a file that is not a delta between these bundles. old is "" for a pack.
func (o overwrite) delta(path string, old, next digest.Digest) error {
	if o.force || !occupied(path) {
		return nil
	}
	if head, err := delta.ReadHead(path); err == nil && head.Old == old && head.New == next {
		return nil
	}
	return refused(path, " and is not of the same bundles")
}

// statement refuses a file that is not a statement of build --provenance.
func (o overwrite) statement(path string) error {
	if o.force || !occupied(path) {
		return nil
	}
	if data, err := builder.ReadFile(path); err == nil {
		if _, err := provenance.Parse(data); err == nil {
			return nil
		}
	}
	return refused(path, " and is not a statement of build --provenance")
}

// occupant returns the name of the first file of a bundle at path, in one file or in parts, or "".
func occupant(path string) (string, error) {
	if occupied(path) {
		return path, nil
	}
	last, err := parts.Last(path)
	if err != nil {
		return "", err
	}
	for n := 1; n <= last; n++ {
		if name := parts.Name(path, n); exists(name) {
			return name, nil
		}
	}
	if list := path + parts.ListSuffix; exists(list) {
		return list, nil
	}
	return "", nil
}

// occupied reports whether there is a file at path, or a link.
func occupied(path string) bool {
	found, err := os.Lstat(path)
	return err == nil && (found.Mode().IsRegular() || found.Mode()&fs.ModeSymlink != 0)
}
