package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newCertsCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "List and renew a cluster's certificates, replace its authorities, and save its keys",
		Long: `Lists, renews, replaces and saves a cluster's certificates.

Certificates of control planes, of the site's registry and of external etcd are valid for a year. By default, timers
on their hosts renew them 60 days before they end (certificates.renew: auto). These commands are for checks, for
clusters with renew: manual, and for hosts that were switched off.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCertsCheckCmd(g), newCertsRenewCmd(g), newCertsRotateCmd(g), newCertsBackupCmd(g))
	return cmd
}

// An expiringError means that certificates end soon, with --fail.
type expiringError struct{ error }

type certsCheckOptions struct {
	site.Flags
	days int
	fail bool
}

func newCertsCheckCmd(g *globals) *cobra.Command {
	var o certsCheckOptions
	cmd := &cobra.Command{
		Use:   "check -i INVENTORY [BUNDLE]",
		Short: "List the certificates of all hosts by expiry",
		Long: `Lists the certificates on all hosts by expiry, and how each is renewed. Changes nothing.

With --fail, the exit code is 22 if a certificate has ended or ends within --days, for monitoring.`,
		Example: "  kkbundle certs check -i inventory.yaml -c cluster.yaml --days 30 --fail",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command,
			args []string,
		) error {
			return runCertsCheck(cmd.Context(), g, first(args), o)
		},
	}
	o.ClusterOptional = true
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().IntVar(&o.days, "days", 60, "`days` before the end from which a certificate ends soon")
	cmd.Flags().BoolVar(&o.fail, "fail", false, "fail if a certificate ends soon")
	return cmd
}

func runCertsCheck(ctx context.Context, g *globals, path string, o certsCheckOptions) (err error) {
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := rotate.Certificates(ctx, s.Options())
	if len(all) == 0 && err == nil && !g.JSON {
		g.Note("there are no certificates of a cluster on these hosts")
	}
	if len(all) == 0 && err == nil && o.fail {
		return &expiringError{errors.New("no certificate was found")}
	}
	if len(all) == 0 && (err != nil || !g.JSON) {
		return err
	}
	now := time.Now()
	soon := 0
	for _, c := range all {
		if c.Problem != "" || c.End.Before(now.AddDate(0, 0, o.days)) {
			soon++
		}
	}
	if g.JSON {
		err = errors.Join(g.PrintJSON(map[string]any{"version": 1, "certificates": all}), err)
	} else {
		err = errors.Join(printCertificates(g, all, now), err)
	}
	if err == nil && o.fail && soon > 0 {
		return &expiringError{fmt.Errorf("%s within %s", plain.Count(soon, "certificate")+" end",
			plain.Count(o.days, "day"))}
	}
	return err
}

func printCertificates(g *globals, all []rotate.Certificate, now time.Time) error {
	var rows [][]string
	for _, c := range all {
		end, left, by := c.End.Format(time.DateOnly), remaining(c.End.Sub(now)), c.Renewal
		if c.Problem != "" {
			end, left, by = "unreadable", "", c.Problem
		}
		rows = append(rows, []string{end, left, c.Host, c.Path, by})
	}
	return g.PrintTable([]string{"ENDS", "LEFT", "HOST", "CERTIFICATE", "RENEWED BY"}, rows)
}

// remaining returns a duration in days, or in hours of the last days.
func remaining(left time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case left < 0:
		return "ended"
	case left < 2*day:
		return fmt.Sprintf("%d h", int(left.Hours()))
	}
	return fmt.Sprintf("%d d", int(left/day))
}

type certsRenewOptions struct {
	site.Flags
	days   int
	dryRun bool
}

func newCertsRenewCmd(g *globals) *cobra.Command {
	var o certsRenewOptions
	cmd := &cobra.Command{
		Use:   "renew -i INVENTORY [BUNDLE]",
		Short: "Renew the certificates of control plane, registry and external etcd now",
		Long: `Issues new certificates for the site's registry, which restarts, and for external etcd, where nothing restarts. Then
renews kubeadm's on one control plane after the other: kubeadm certs renew all, then a restart of etcd, API server,
controller manager and scheduler; the next one follows when the API server is ready. Workloads keep running.
admin.conf in the work directory is renewed too. With --days, only hosts with a certificate that ends within so many
days are changed.

Kubelets renew their own certificates. kkbundle certs rotate-ca replaces authorities. Guide: docs/day-two/certs.md.`,
		Example: "  kkbundle certs renew -i inventory.yaml site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command,
			args []string,
		) error {
			return runCertsRenew(cmd.Context(), g, first(args), o)
		},
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().IntVar(&o.days, "days", 0,
		"only hosts with a certificate that ends within so many `days` (default: all)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the changes, and make none")
	return cmd
}

func runCertsRenew(ctx context.Context, g *globals, path string, o certsRenewOptions) error {
	return g.runOnSite(ctx, o.Flags, path, o.dryRun, func(options engine.Options) (engine.Report, error) {
		return rotate.RenewCertificates(ctx, options, time.Duration(o.days)*24*time.Hour)
	})
}

type certsBackupOptions struct {
	site.Flags
	output    string
	overwrite overwrite
}

func newCertsBackupCmd(g *globals) *cobra.Command {
	var o certsBackupOptions
	cmd := &cobra.Command{
		Use:   "backup -i INVENTORY -o FILE [BUNDLE]",
		Short: "Save the keys needed to restore a cluster",
		Long: `Writes a tar file (mode 0600) with the cluster's authorities and service account key, from the first control plane,
and the keys of the work directory. With backup.recipients in the cluster file it is an age file for these recipients.
Otherwise it is in clear and gives full control of the cluster: keep it apart from the etcd backups.`,
		Example: "  kkbundle certs backup -i inventory.yaml -o site-keys.tar site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command,
			args []string,
		) error {
			return runCertsBackup(cmd.Context(), g, first(args), o)
		},
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "the `file` (required)")
	o.overwrite.add(cmd.Flags())
	return cmd
}

func runCertsBackup(ctx context.Context, g *globals, path string, o certsBackupOptions) (err error) {
	if o.output == "" {
		return usage.Errorf("name the file with -o")
	}
	if err := o.overwrite.file(o.output); err != nil {
		return err
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	files, err := rotate.Keys(ctx, s.Options())
	if err != nil {
		return err
	}
	var out bytes.Buffer
	in := io.WriteCloser(inClear{&out})
	if recipients := s.Cluster.Backup.Recipients; len(recipients) > 0 {
		if in, err = node.NewEncrypter(recipients, &out); err != nil {
			return err
		}
	}
	w := tar.NewWriter(in)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o600, Size: int64(len(f.Data)),
			ModTime: time.Now(),
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.Data); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), in.Close()); err != nil {
		return err
	}
	if err := disk.WriteFile(o.output, 0o600, &out); err != nil {
		return err
	}
	noteClear(g, s.Cluster, o.output)
	g.Note("%s in %s", plain.Count(len(files), "file"), o.output)
	return nil
}
