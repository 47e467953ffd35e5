package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// etcdDefrag is a member in the JSON output of etcd defrag.
type etcdDefrag struct {
	Endpoint string `json:"endpoint"`
	Before   int64  `json:"before"`
	After    int64  `json:"after"`
	Skipped  bool   `json:"skipped,omitempty"`
}

type etcdDefragOptions struct {
	site.Flags
	always bool
}

func newEtcdDefragCmd(g *globals) *cobra.Command {
	var o etcdDefragOptions
	cmd := &cobra.Command{
		Use:   "defrag -i INVENTORY [BUNDLE]",
		Short: "Give free room of etcd's databases back",
		Long: `Defragments the members of etcd one by one, the leader last, each only while all members are healthy. A member does
not answer while it is worked on: some seconds for each gigabyte. Members that would gain little are skipped, unless
--always is given.

With the alarm NOSPACE, etcd's history is dropped first, and the alarm is taken back if enough is free. Guide:
docs/day-two/etcd.md.`,
		Example: "  kkbundle etcd defrag -i inventory.yaml site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEtcdDefrag(cmd.Context(), g, strings.Join(args, ""), o)
		},
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().BoolVar(&o.always, "always", false, "defragment members with little free room, too")
	return cmd
}

func runEtcdDefrag(ctx context.Context, g *globals, path string, o etcdDefragOptions) (err error) {
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Progress = p.Event
	done, failed := etcdops.Defrag(ctx, options, o.always)
	p.Close()
	if g.JSON {
		out := etcdResult{Version: 1}
		for _, d := range done {
			out.Defrag = append(out.Defrag, etcdDefrag(d))
		}
		return errors.Join(json.NewEncoder(g.Out).Encode(out), failed)
	}
	for _, d := range done {
		if d.Skipped {
			g.Note("%s: %s, too little free room to defragment; --always does it", d.Endpoint, plain.Size(d.Before))
			continue
		}
		g.Note("%s: %s before, %s now", d.Endpoint, plain.Size(d.Before), plain.Size(d.After))
	}
	return failed
}
