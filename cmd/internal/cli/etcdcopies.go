package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// etcdCopy is a copy in the JSON output of etcd copies.
type etcdCopy struct {
	Copy string `json:"copy"` // for etcd fetch
	Host string `json:"host"`
	Time string `json:"time"`
	Size int64  `json:"size"`
}

func newEtcdCopiesCmd(g *globals) *cobra.Command {
	var o site.Flags
	cmd := &cobra.Command{
		Use:   "copies -i INVENTORY [BUNDLE]",
		Short: "List the snapshots that etcd hosts have saved",
		Long: `Lists the snapshots that the etcd hosts have saved by their timers, newest first: those on the hosts, and those in
the object storage if the cluster file names one (backup.s3), whose user then needs the right to list. Hosts and
storage that do not answer are named, and the command fails after the list.`,
		Example: "  kkbundle etcd copies -i inventory.yaml site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEtcdCopies(cmd.Context(), g, strings.Join(args, ""), o)
		},
	}
	o.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	return cmd
}

func runEtcdCopies(ctx context.Context, g *globals, path string, o site.Flags) (err error) {
	s, err := g.openSite(ctx, o, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	list, failed := etcdops.ListCopies(ctx, s.Options())
	const form = "2006-01-02T15:04:05Z"
	if g.JSON {
		out := etcdResult{Version: 1}
		for _, c := range list {
			out.Copies = append(out.Copies, etcdCopy{c.String(), c.Host, c.Time().Format(form), c.Size})
		}
		return errors.Join(json.NewEncoder(g.Out).Encode(out), failed)
	}
	w := tabwriter.NewWriter(g.Out, 0, 0, 2, ' ', 0) //nolint:mnd // blanks between columns
	if len(list) > 0 {
		_, _ = fmt.Fprintln(w, "TIME\tSIZE\tCOPY") // Flush returns the error
	}
	for _, c := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", c.Time().Format(form), plain.Size(c.Size), plain.Line(c.String()))
	}
	return errors.Join(w.Flush(), failed)
}

type etcdFetchOptions struct {
	site.Flags
	copy, output string
}

func newEtcdFetchCmd(g *globals) *cobra.Command {
	var o etcdFetchOptions
	cmd := &cobra.Command{
		Use:   "fetch -i INVENTORY --copy COPY [BUNDLE]",
		Short: "Fetch a snapshot that an etcd host has saved",
		Long: `Copies a snapshot that an etcd host has saved to this machine, from the host (HOST/FILE) or from the object storage
(s3:HOST/FILE), as etcd copies lists it. From the storage, no host has to answer. The file is as it was saved:
encrypted if backup.recipients was set, otherwise in clear, with mode 0600. It is a file for etcd restore --from.`,
		Example: `  kkbundle etcd fetch -i inventory.yaml --copy node1/etcd-20261123T060000Z.db site-1.4.0.kkb
  kkbundle etcd fetch -i inventory.yaml -c cluster.yaml --copy s3:node1/etcd-20261123T060000Z.db.age -o latest.db.age`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEtcdFetch(cmd.Context(), g, strings.Join(args, ""), o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringVar(&o.copy, "copy", "", "the `copy`, as etcd copies prints it (required)")
	f.StringVarP(&o.output, "output", "o", "", "the `file` to write (default the name of the copy)")
	return cmd
}

func runEtcdFetch(ctx context.Context, g *globals, path string, o etcdFetchOptions) (err error) {
	if o.copy == "" {
		return usage.Errorf("name the copy with --copy; kkbundle etcd copies lists them")
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if o.output == "" {
		o.output = o.copy[strings.LastIndexByte(o.copy, '/')+1:]
	}
	made, err := etcdops.FetchCopy(ctx, s.Options(), o.copy, o.output)
	if err != nil {
		return err
	}
	if g.JSON {
		return json.NewEncoder(g.Out).Encode(etcdResult{Version: 1, Backup: &etcdFile{
			Path: made.Path, Size: made.Size,
			SHA256: made.SHA256, Host: made.Host,
		}})
	}
	g.Note("fetched %s, %s, sha256:%s", o.copy, plain.Size(made.Size), made.SHA256)
	return g.Result("%s", made.Path)
}
