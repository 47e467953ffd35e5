package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/installer/look"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type supportOptions struct {
	site.Flags
	output        string
	overwrite     overwrite
	namespaces    []string
	allNamespaces bool
	values        bool
}

func newSupportBundleCmd(g *globals) *cobra.Command {
	o := supportOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "support-bundle -i INVENTORY [BUNDLE]",
		Short: "Collect logs, facts and configuration for support, without secrets",
		Long: `Collects data for troubleshooting from all hosts and the cluster into one tar file compressed with zstd (mode 0600):
install.log and the last report, logs of units and pods, facts, versions, configuration files, and the cluster's
objects without Secrets. Passwords, tokens and keys are removed, and the values of variables and config maps left out.
Objects and logs are those of Kubernetes' own namespaces and of the pod network's; name others with --namespace.
Nothing on the hosts is changed.

It works with a broken or partly installed cluster. Its README.txt lists unreachable hosts and missing data.`,
		Example: "  kkbundle support-bundle -i inventory.yaml -o support.tar.zst",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSupportBundle(cmd.Context(), g, first(args), o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", "", "the `file` to write (default support-TIME.tar.zst)")
	o.overwrite.add(f)
	f.StringSliceVarP(&o.namespaces, "namespace", "n", nil, "also collect objects and logs of this `namespace`")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "collect objects and logs of all namespaces")
	f.BoolVar(&o.values, "with-values", false,
		"include the values of variables and config maps, unless they look like secrets")
	return cmd
}

func runSupportBundle(ctx context.Context, g *globals, path string, o supportOptions) (err error) {
	if o.output == "" {
		o.output = "support-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.zst"
	}
	if err := o.overwrite.file(o.output); err != nil {
		return err
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	g.Note("asking %s", plain.Count(len(s.Inventory.Hosts()), "host"))
	const mode = 0o600
	var made look.SupportBundle
	err = disk.WriteFileWith(o.output, mode, func(w io.Writer) (err error) {
		made, err = look.WriteSupportBundle(ctx, look.SupportOptions{
			StatusOptions: look.StatusOptions{Options: s.Options(), AnyCluster: s.AnyCluster},
			Namespaces:    o.namespaces, AllNamespaces: o.allNamespaces, Values: o.values,
		}, w)
		return err
	})
	if err != nil {
		return err
	}
	for _, one := range made.Unreached {
		g.Note("not reached: %s", plain.Lines(one))
	}
	for _, one := range made.Lacking {
		g.Note("not collected: %s", plain.Lines(one))
	}
	if g.JSON {
		return g.PrintJSON(supportResult{
			Version: 1, Path: o.output, Files: made.Files, Unreached: made.Unreached,
			Lacking: made.Lacking,
		})
	}
	return g.Result("%s", o.output)
}

// supportResult is the JSON output of support-bundle.
type supportResult struct {
	Version   int      `json:"version"` // 1
	Path      string   `json:"path"`
	Files     int      `json:"files"`
	Unreached []string `json:"unreached,omitempty"`
	Lacking   []string `json:"lacking,omitempty"`
}
