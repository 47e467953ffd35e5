package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/charts/sandbox"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type imagesOptions struct {
	projectFlags
	names   bool
	variant string
}

func newImagesCmd(g *globals) *cobra.Command {
	var o imagesOptions
	cmd := &cobra.Command{
		Use:   "images [MANIFEST|DIR]",
		Short: "List the images of a manifest and the reasons for each",
		Long: `Lists the images that a bundle of the manifest would have, and the reasons for each: the manifest itself, the
cluster, or an object of a chart or of Kubernetes YAML. Undecided texts, which may be images, follow. Charts are
downloaded, images are not.

Undecided texts are settled in the manifest: list needed images under images, write imageRules for custom resources
that name images, and list other texts under excludeImages.`,
		Example: `  kkbundle images manifest.yaml
  kkbundle images --names manifest.yaml`,
		Args: takes("[MANIFEST|DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := manifestFile(args)
			if err != nil {
				return err
			}
			return runImages(cmd.Context(), g, file, o)
		},
	}
	o.add(cmd.Flags())
	addVariant(cmd.Flags(), &o.variant, " (required with them)")
	cmd.Flags().BoolVar(&o.names, "names", false, "print the references alone, one a line")
	return cmd
}

func runImages(ctx context.Context, g *globals, file string, o imagesOptions) error {
	p, err := g.loadProject(file, o.variant, o.projectFlags)
	if err != nil {
		return err
	}
	opts, err := o.options(g)
	if err != nil {
		return err
	}
	r, failed := p.Images(ctx, opts)
	if r.Version == 0 {
		return failed
	}
	return errors.Join(g.printImages(r, o.names), failed)
}

func (g *globals) printImages(r builder.Images, names bool) error {
	if g.JSON {
		return g.PrintJSON(r)
	}
	var b strings.Builder
	for _, image := range r.Images {
		fmt.Fprintln(&b, plain.Line(image.Ref))
		for _, w := range image.WantedBy {
			if !names {
				fmt.Fprintf(&b, "    %s\n", plain.Line(w.String()))
			}
		}
	}
	if !names && len(r.Excluded) > 0 {
		fmt.Fprintf(&b, "\nExcluded:\n")
		for _, image := range r.Excluded {
			fmt.Fprintf(&b, "    %s\n", plain.Line(image.Ref))
		}
	}
	if !names && len(r.Undecided) > 0 {
		fmt.Fprintf(&b, "\nUndecided:\n")
		for _, u := range r.Undecided {
			fmt.Fprintf(&b, "    %s\n", plain.Line(u.String()))
		}
	}
	_, err := io.WriteString(g.Out, b.String())
	return err
}

func newSandboxCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:    sandbox.Command,
		Short:  "Do work that strangers' content decides, for another kkbundle",
		Hidden: true,
		Args:   takes(),
		RunE: func(*cobra.Command, []string) error {
			tasks := builder.Tasks()
			maps.Copy(tasks, charts.Tasks())
			return tasks.Run(g.In, g.Out)
		},
	}
}
