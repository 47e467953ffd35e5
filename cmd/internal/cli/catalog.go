package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

func newCatalogCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Update the catalog of component versions",
		Long:  "Works on the catalog: the versions, addresses and images of cluster components. See docs/build/catalog.md.",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			return usage.Errorf("name a subcommand: update; see `kkbundle catalog --help`")
		},
	}
	cmd.AddCommand(newCatalogUpdateCmd(g))
	return cmd
}

type catalogUpdateOptions struct {
	output     string
	components []string
	dryRun     bool
	jobs       usage.Jobs
}

func newCatalogUpdateCmd(g *globals) *cobra.Command {
	var o catalogUpdateOptions
	cmd := &cobra.Command{
		Use:   "update [MANIFEST] -o FILE",
		Short: "Write a catalog with upstream's newest patch releases",
		Long: `Asks upstream for the newest patch release of each version in the catalog, and writes a catalog file with the entries
that changed. Name it in the cluster file (catalog: [FILE]); kkbundle lock then records its digest. Minor releases are
printed and not taken. The versions of etcd, CoreDNS and pause are those of kubeadm's release, and images of charts
are read from the charts: neither is in the file.

An existing FILE must be of an earlier update, and is updated. If one request fails, nothing is written. MANIFEST
gives the sources (mirrors, authorities). With --json: {"version", "changed", "digest", "rows": [{"component",
"since", "have", "patch", "minor", "latest", "reason"}]}.`,
		Example: "  kkbundle catalog update -o catalog.yaml\n  kkbundle catalog update --dry-run --component kubernetes --component containerd",
		Args:    takes("[MANIFEST]"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runCatalogUpdate(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "write the catalog to this `file`")
	f.StringArrayVar(&o.components, "component", nil,
		"update only this component (`name` as in the catalog, or kubernetes); can be repeated")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the differences and write nothing")
	o.jobs = fetch.DefaultJobs
	f.VarP(&o.jobs, "jobs", "j", "requests at once")
	return cmd
}

// catalogUpdateResult is the JSON output of catalog update.
type catalogUpdateResult struct {
	Version int           `json:"version"` // 1
	Changed int           `json:"changed"`
	Digest  digest.Digest `json:"digest,omitempty"` // of the written file
	Rows    []catalogRow  `json:"rows"`
}

type catalogRow struct {
	Component string `json:"component"`
	Since     string `json:"since,omitempty"`
	Have      string `json:"have"`
	Patch     string `json:"patch,omitempty"`
	Minor     string `json:"minor,omitempty"`
	Latest    string `json:"latest,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

func runCatalogUpdate(ctx context.Context, g *globals, args []string, o catalogUpdateOptions) error {
	if o.output == "" && !o.dryRun {
		return usage.Errorf("name a file with -o, or give --dry-run")
	}
	var own *catalogfile.Catalog
	if o.output != "" {
		if _, err := os.Lstat(o.output); err == nil {
			if own, err = builder.ReadUpdate(o.output); err != nil {
				return err
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	options := fetch.Options{Jobs: int(o.jobs), Logger: g.Logger()}
	for _, file := range args {
		var err error
		if options.Sources, err = sourcesOf(file); err != nil {
			return err
		}
		options.Dir = filepath.Dir(file)
	}
	u, failed := builder.UpdateCatalog(ctx, own, o.components, options)
	if u == nil {
		return failed
	}
	r := catalogRows(u)
	err := failed
	if failed == nil && !o.dryRun && (len(u.Changes) > 0 || own == nil) {
		r.Digest, err = writeCatalog(u, o.output)
	}
	return errors.Join(err, printCatalogUpdate(g, r, o.output))
}

// sourcesOf returns the sources of a manifest.
func sourcesOf(file string) ([]sources.Source, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b, err := builder.ReadManifest(file, data, builder.LoadOptions{Variable: os.LookupEnv})
	if err != nil {
		return nil, err
	}
	return b.Sources, nil
}

func catalogRows(u *builder.CatalogUpdate) catalogUpdateResult {
	r := catalogUpdateResult{Version: 1, Changed: len(u.Changes), Rows: make([]catalogRow, 0, len(u.Rows))}
	for _, row := range u.Rows {
		one := catalogRow{
			Component: row.Component, Since: row.Since, Have: row.Version, Patch: row.Patch,
			Minor: row.Minor, Latest: row.Latest, Reason: row.Unknown,
		}
		if row.Err != nil {
			one.Reason = "failed"
		}
		r.Rows = append(r.Rows, one)
	}
	return r
}

// writeCatalog writes the file of an update and returns its digest.
func writeCatalog(u *builder.CatalogUpdate, file string) (digest.Digest, error) {
	data, err := u.Marshal()
	if err != nil {
		return "", err
	}
	const readable = 0o644
	return digest.FromBytes(data), disk.WriteFile(file, readable, bytes.NewReader(data))
}

func printCatalogUpdate(g *globals, r catalogUpdateResult, file string) error {
	if g.JSON {
		return g.PrintJSON(r)
	}
	var rows [][]string
	unknown := 0
	for _, row := range r.Rows {
		if row.Reason != "" && row.Reason != "failed" {
			unknown++
			continue
		}
		if row.Patch+row.Minor+row.Latest+row.Reason == "" {
			continue
		}
		dash := func(s string) string { return cmp.Or(s, "-") }
		rows = append(rows, []string{
			row.Component, dash(row.Since), row.Have, dash(row.Patch), dash(row.Minor),
			dash(row.Latest), row.Reason,
		})
	}
	if len(rows) > 0 {
		if err := g.PrintTable([]string{"COMPONENT", "SINCE", "HAVE", "PATCH", "MINOR", "LATEST", "NOTE"},
			rows); err != nil {
			return err
		}
	}
	g.Note("%s changed, %d without a list of versions upstream", plain.Count(r.Changed, "version"), unknown)
	if r.Digest != "" {
		g.Note("%s: %s", file, r.Digest)
	}
	return nil
}
