package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newEtcdCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Save, restore and defragment etcd",
		Long: `Saves, restores and defragments etcd, which has all objects of the API server, but not the content of volumes.

The etcd hosts also save snapshots themselves, every 6 hours unless the cluster file (etcd.backup) has other values,
and send them to an object storage if it names one (backup.s3).`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEtcdBackupCmd(g), newEtcdCopiesCmd(g), newEtcdDefragCmd(g), newEtcdFetchCmd(g),
		newEtcdRestoreCmd(g))
	return cmd
}

type etcdBackupOptions struct {
	site.Flags
	output string
}

func newEtcdBackupCmd(g *globals) *cobra.Command {
	var o etcdBackupOptions
	cmd := &cobra.Command{
		Use:   "backup -i INVENTORY [BUNDLE]",
		Short: "Save an etcd snapshot to a file on this machine",
		Long: `Saves a snapshot of etcd on this machine and checks it against etcd's checksum. The cluster keeps running. With
backup.recipients in the cluster file, the file is an age file for these recipients. Otherwise it is in clear and has
all objects of the cluster; only its owner can read it.`,
		Example: "  kkbundle etcd backup -i inventory.yaml -o before-upgrade.db site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEtcdBackup(cmd.Context(), g, strings.Join(args, ""), o)
		},
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().StringVarP(&o.output, "output", "o", "",
		"the `file` to write (default CLUSTER-etcd-TIME.db, .age if encrypted)")
	return cmd
}

func runEtcdBackup(ctx context.Context, g *globals, path string, o etcdBackupOptions) (err error) {
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if o.output == "" {
		o.output = s.Cluster.Metadata.Name + "-etcd-" + time.Now().UTC().Format("20060102T150405Z") + ".db"
		if len(s.Cluster.Backup.Recipients) > 0 {
			o.output += ".age"
		}
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Progress = p.Event
	made, err := etcdops.Backup(ctx, options, o.output)
	p.Close()
	if err != nil {
		return err
	}
	if g.JSON {
		return json.NewEncoder(g.Out).Encode(etcdResult{Version: 1, Backup: &etcdFile{
			made.Path, made.Size, made.SHA256,
			made.Host, made.Revision, made.Keys,
		}})
	}
	noteClear(g, s.Cluster, made.Path)
	g.Note("saved revision %d with %s from %s, %s, sha256:%s", made.Revision, plain.Count(made.Keys, "key"), made.Host,
		plain.Size(made.Size), made.SHA256)
	return g.Result("%s", made.Path)
}

// etcdResult is the last line of the JSON output of etcd's commands.
type etcdResult struct {
	Version int          `json:"version"` // 1
	Backup  *etcdFile    `json:"backup,omitempty"`
	Copies  []etcdCopy   `json:"copies,omitempty"`
	Defrag  []etcdDefrag `json:"defrag,omitempty"`
	Restore *etcdRestore `json:"restore,omitempty"`
}

type etcdFile struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	SHA256   string `json:"sha256"`
	Host     string `json:"host,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Keys     int    `json:"keys,omitempty"`
}

type etcdRestore struct {
	From    etcdFile `json:"from"`
	Members []string `json:"members"`
	Before  []string `json:"before"` // HOST:PATH of the previous data
}

type etcdRestoreOptions struct {
	site.Flags
	from    string
	without []string
	yes     bool
}

func newEtcdRestoreCmd(g *globals) *cobra.Command {
	var o etcdRestoreOptions
	cmd := &cobra.Command{
		Use:   "restore -i INVENTORY --from FILE [BUNDLE]",
		Short: "Restore etcd from a snapshot",
		Long: `Creates a new etcd cluster from a snapshot on all its hosts. Later changes are lost. Control planes stop during the
restore; pods keep running. All hosts are prepared before the first one stops. Previous data is moved aside, not
deleted.

An encrypted snapshot is decrypted on this machine with --identity; neither the identity nor a decrypted file is
written to a disk here.

Continue an interrupted restore with the same command; until then, control planes may be down.`,
		Example: `  kkbundle etcd restore -i inventory.yaml --from before-upgrade.db site-1.4.0.kkb
  kkbundle etcd restore -i inventory.yaml --from before-upgrade.db --without node3 site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			identities, err := readIdentities(cmd.Flags())
			if err != nil {
				return err
			}
			return runEtcdRestore(cmd.Context(), g, strings.Join(args, ""), o, identities)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringVar(&o.from, "from", "", "the snapshot `file`, of etcd backup or etcd fetch (required)")
	f.StringSliceVar(&o.without, "without", nil, "lost `hosts`, which are switched off")
	addIdentity(f)
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func runEtcdRestore(ctx context.Context, g *globals, path string, o etcdRestoreOptions,
	identities []age.Identity,
) (err error) {
	if o.from == "" {
		return usage.Errorf("name the snapshot to restore with --from")
	}
	snapshot, err := etcdops.ReadSnapshot(o.from, identities...)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("--from %s: %w", o.from, usage.FileError(err))
	}
	if err != nil {
		return &builder.InputError{Err: err}
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if !o.yes {
		question := fmt.Sprintf("Restore etcd of cluster %s from %s (%s, sha256:%s)? Later changes are lost.",
			s.Cluster.Metadata.Name, o.from, plain.Size(snapshot.Size), snapshot.SHA256)
		if err := g.Confirm(question); err != nil {
			return err
		}
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Progress = p.Event
	done, err := etcdops.Restore(ctx, options, etcdops.RestoreOptions{
		From: o.from, Identities: identities,
		Without: o.without,
	})
	p.Close()
	for _, dir := range done.Before {
		g.Note("previous data of etcd: %s", dir)
	}
	if err != nil {
		if len(done.Members) > 0 {
			g.Note("run the same command again after removing the cause: it starts over and completes the restore")
		}
		return err
	}
	if g.JSON {
		from := etcdFile{Path: done.Snapshot.Path, Size: done.Snapshot.Size, SHA256: done.Snapshot.SHA256}
		return json.NewEncoder(g.Out).Encode(etcdResult{
			Version: 1,
			Restore: &etcdRestore{from, done.Members, done.Before},
		})
	}
	g.Note("restored on %s", strings.Join(done.Members, ", "))
	return nil
}
