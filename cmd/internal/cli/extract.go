package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
)

type extractOptions struct {
	output, platform string
}

func newExtractCmd(g *globals) *cobra.Command {
	var o extractOptions
	cmd := &cobra.Command{
		Use:   "extract BUNDLE [NAME]",
		Short: "Take one item, or everything, out of a bundle",
		Long: `Takes one item out of a bundle: a file or chart as a file, an image as an OCI image layout directory.
NAME is an item's reference as inspect shows it, or its short name where only one item has it.
Without NAME the whole bundle becomes an OCI image layout directory. With -o - a file or chart goes to standard output.`,
		Example: `  kkbundle extract site-1.4.0.kkb kubeadm --platform linux/arm64
  kkbundle extract site-1.4.0.kkb docker.io/library/nginx:1.29 -o nginx/
  kkbundle extract site-1.4.0.kkb -o layout/`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			return runExtract(cmd.Context(), g, args[0], name, o)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "file or directory to write, - for standard output (default the item's name)")
	cmd.Flags().StringVar(&o.platform, "platform", "", "which platform's file, where there are several")
	return cmd
}

func runExtract(ctx context.Context, g *globals, path, name string, o extractOptions) error {
	r, err := bundle.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	items := r.Index().Items
	if name != "" {
		item, err := findItem(items, name, o.platform)
		if err != nil {
			return err
		}
		if item.Kind != bundle.KindImage {
			return extractFile(ctx, g, r, item, o.output)
		}
		items = []bundle.Item{item}
	}
	dir := o.output
	switch {
	case dir == "" && name == "":
		return &usageError{errors.New("name a directory for the layout with -o")}
	case dir == "":
		dir = filepath.Base(strings.NewReplacer(":", "-", "@", "-").Replace(items[0].Ref))
	}
	if err := bundle.ExtractLayout(ctx, r, dir, items); err != nil {
		return err
	}
	g.note("%s: %d items as an OCI image layout", dir, len(items))
	return nil
}

// findItem returns the one item that has this reference or short name.
func findItem(items []bundle.Item, name, platform string) (bundle.Item, error) {
	var found []bundle.Item
	for _, it := range items {
		p := bundle.PlatformString(it.Descriptor.Platform)
		if (it.Ref == name || it.Name == name) && (platform == "" || p == "" || p == platform) {
			found = append(found, it)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return bundle.Item{}, fmt.Errorf("the bundle has no item %q; `kkbundle inspect` lists them", name)
	}
	var refs []string
	for _, it := range found {
		refs = append(refs, it.String())
	}
	slices.Sort(refs)
	return bundle.Item{}, fmt.Errorf("%q can be %s; give the reference or --platform", name, strings.Join(refs, " or "))
}

// extractFile writes the content of a file or chart.
func extractFile(ctx context.Context, g *globals, r *bundle.Reader, item bundle.Item, output string) (err error) {
	layer, err := r.ContentOf(ctx, item)
	if err != nil {
		return err
	}
	content, err := r.Blob(ctx, layer.Digest, 0)
	if err != nil {
		return err
	}
	defer content.Close()
	if output == "-" {
		_, err := io.Copy(g.Out, content)
		return err
	}
	if output == "" {
		output = defaultFileName(item)
	}
	f, err := os.CreateTemp(filepath.Dir(output), "."+filepath.Base(output)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(fileMode(layer)), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), output); err != nil {
		return err
	}
	g.note("%s: %s, %s", output, size(layer.Size), layer.Digest)
	return nil
}

// defaultFileName is a plain name in the working directory: what a bundle says is not trusted to be one.
func defaultFileName(item bundle.Item) string {
	name := filepath.Base(filepath.Clean("/" + item.Name))
	if item.Kind == bundle.KindChart {
		name += "-" + filepath.Base(filepath.Clean("/"+item.Version)) + ".tgz"
	}
	return name
}

// fileMode is the mode that the manifest gave, or that of a plain file.
func fileMode(layer ocispec.Descriptor) fs.FileMode {
	mode, err := strconv.ParseUint(layer.Annotations[bundle.AnnotationMode], 8, 32)
	if err != nil {
		return 0o644
	}
	return fs.FileMode(mode) & fs.ModePerm
}
