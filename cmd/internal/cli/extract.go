package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
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
		Args: takes("BUNDLE", "[NAME]"),
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

// extractResult is what extract prints with --json: a file, or a layout of so many items.
type extractResult struct {
	Version int           `json:"version"` // 1
	Path    string        `json:"path"`
	Digest  digest.Digest `json:"digest,omitempty"` // of the file
	Size    int64         `json:"size,omitempty"`   // of the file, in bytes
	Items   int           `json:"items"`
}

func runExtract(ctx context.Context, g *globals, path, name string, o extractOptions) error {
	r, err := g.openBundle(path)
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
	case dir == "-":
		return &usageError{errors.New("a layout is a directory and cannot go to standard output: name one with -o")}
	case dir == "" && name == "":
		return &usageError{errors.New("name a directory for the layout with -o")}
	case dir == "":
		dir = filepath.Base(strings.NewReplacer(":", "-", "@", "-").Replace(items[0].Ref))
	}
	if err := bundle.ExtractLayout(ctx, r, dir, items); err != nil {
		return err
	}
	if g.json {
		return printJSON(g.Out, extractResult{Version: 1, Path: dir, Items: len(items)})
	}
	g.note("%s: %s as an OCI image layout", dir, count(len(items), "item"))
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
		if platform != "" {
			name += " for " + platform
		}
		return bundle.Item{}, fmt.Errorf("the bundle has no %s; `kkbundle inspect` lists what it has", name)
	}
	var refs []string
	for _, it := range found {
		refs = append(refs, it.String())
	}
	slices.Sort(refs)
	return bundle.Item{}, fmt.Errorf("%q can be %s; give the reference or --platform", name, strings.Join(refs, " or "))
}

// extractFile writes the content of a file or chart.
func extractFile(ctx context.Context, g *globals, r *bundle.Reader, item bundle.Item, output string) error {
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
	if err := writeFile(output, fileMode(layer), content); err != nil {
		return err
	}
	if g.json {
		return printJSON(g.Out, extractResult{1, output, layer.Digest, layer.Size, 1})
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
