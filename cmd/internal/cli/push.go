package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/plain"
	"github.com/kkbundle/kkbundle/registry"
)

type pushOptions struct {
	registryFlags
	registry                  string
	dryRun, recheck           bool
	items, platforms, renames []string
	harbor                    harborFlags
}

func newPushCmd(g *globals) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push --registry HOST[/PREFIX] BUNDLE",
		Short: "Push the items of a bundle to a registry",
		Long: `Pushes images with their referrers (signatures, attestations), charts and files to an OCI registry, directly from the bundle. Existing
content is not sent again, and every tag's digest is compared afterwards. A repeated push continues. The blobs of an existing manifest
are assumed to exist; --recheck asks for each. - reads the bundle from standard input without a temporary file; a named pipe works too.

Names are HOST[/PREFIX]/<upstream host>/<path>; a port in the upstream host becomes _port. --rename changes the path after
HOST[/PREFIX]/; the first matching rule counts. With --platform, images keep their index if the registry accepts sparse indexes, and
otherwise get a smaller one, which is reported. Credentials come from docker's configuration and its helpers, or from --username and
--password-stdin; proxies from HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

On Harbor, missing projects are created: one for each upstream host, or the one of --registry HOST/PROJECT.`,
		Example: `  kkbundle push --registry harbor.site/mirror site-1.4.0.kkb
  kkbundle push --registry harbor.site --rename docker.io/library=base --harbor-quota 50GiB --harbor-robot hosts site-1.4.0.kkb
  kkbundle push --registry 10.0.0.3:5000 --dry-run --item 'docker.io/*' --item chart:ingress-nginx --platform linux/arm64 site-1.4.0.kkb
  kkbundle push --registry 10.0.0.3:5000 --ca registry-ca.pem --username ops --password-stdin site-1.4.0.kkb < password
  ssh build cat site-1.4.0.kkb | kkbundle push --registry harbor.site -`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPush(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.registry, "registry", "", "the registry, host[:port][/prefix] (required)")
	o.registryFlags.add(f)
	f.StringArrayVar(&o.items, "item", nil, "push only items with a matching reference or name, [KIND:]GLOB (repeated)")
	f.StringArrayVar(&o.platforms, "platform", nil, "push only these platforms of images and files (repeated)")
	f.StringArrayVar(&o.renames, "rename", nil, "FROM=TO: push repositories below the upstream name FROM below TO (repeated)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be sent, and change nothing")
	f.BoolVar(&o.recheck, "recheck", false, "ask for every blob, even if its manifest exists")
	o.harbor.add(f)
	g.addTrust(f)
	return cmd
}

func runPush(ctx context.Context, g *globals, path string, o pushOptions) error {
	start := time.Now()
	if err := errors.Join(o.check(), o.checkPipe(path)); err != nil {
		return err
	}
	options, err := o.library(g)
	if err != nil {
		return err
	}
	from, err := g.openPushSource(ctx, path, o.jobs)
	if err != nil {
		return err
	}
	defer from.Close()
	if options.Select, err = itemSelection(o.items, from.items); err != nil {
		return err
	}
	m := g.NewMeter("push")
	options.Progress = func(e registry.Event) { m.Set(e.Done, e.Total) }
	sum, err := from.push(ctx, options)
	m.Stop()
	if err != nil {
		err = &pushError{err}
	}
	err = errors.Join(err, o.harbor.handOver(g, &sum))
	if g.JSON {
		return errors.Join(err, g.PrintJSON(pushResult{Version: 1, PushSummary: sum}))
	}
	for _, w := range sum.Warnings {
		g.Note("warning: %s", plain.Line(w))
	}
	if err != nil {
		return err
	}
	return o.print(g, sum, time.Since(start))
}

// pushResult is the JSON output of push.
type pushResult struct {
	Version int `json:"version"` // 1
	registry.PushSummary
}

// check returns errors of the command line.
func (o *pushOptions) check() error {
	if o.registry == "" {
		return usage.Errorf("name the registry with --registry HOST[/PREFIX]")
	}
	if err := o.registryFlags.check(); err != nil {
		return err
	}
	if err := registry.CheckTarget(o.registry); err != nil {
		return &usage.Error{Err: err}
	}
	return o.harbor.check()
}

// library returns the options of registry.Push that do not depend on the bundle.
func (o *pushOptions) library(g *globals) (registry.PushOptions, error) {
	options := registry.PushOptions{
		Registry: o.registry, PlainHTTP: o.plainHTTP, Jobs: o.jobs, DryRun: o.dryRun, Recheck: o.recheck, Harbor: o.harbor.options(), Logger: g.Logger(),
	}
	var errs []error
	for _, text := range o.renames {
		rule, err := registry.ParseRename(text)
		errs = append(errs, err)
		options.Rename = append(options.Rename, rule)
	}
	if err := errors.Join(errs...); err != nil {
		return options, usage.Errorf("--rename: %w", err)
	}
	var err error
	if options.Platforms, err = platformFlags(o.platforms); err != nil {
		return options, err
	}
	if options.Auth, err = o.keychain(g.In); err != nil {
		return options, err
	}
	options.Transport, err = o.transport()
	return options, err
}

// print prints the destination of each item, and for people the sums.
func (o *pushOptions) print(g *globals, sum registry.PushSummary, took time.Duration) error {
	for _, it := range sum.Items {
		var err error
		switch {
		case it.State == registry.StateSkipped:
		case o.dryRun:
			err = g.Result("%s %s@%s", it.State, it.Destination, it.Digest)
		default:
			err = g.Result("%s@%s", it.Destination, it.Digest)
		}
		if err != nil {
			return err
		}
	}
	if sum.Harbor != nil {
		for _, p := range sum.Harbor.Projects {
			if p.State != registry.ProjectExists {
				g.Note("project %s: %s", p.Name, p.State)
			}
		}
	}
	if o.dryRun {
		g.Note("dry run: %s to %s would be sent: %s; %s there already. Nothing was changed",
			plain.Count(sum.ItemsMissing, "item"), o.registry, plain.Size(sum.BytesMissing), plain.Count(sum.ItemsPresent, "item"))
		return nil
	}
	g.Note("%s in %s: %s sent, %s mounted, %d there already (%s)",
		plain.Count(sum.ItemsPushed+sum.ItemsPresent, "item"), o.registry, plain.Size(sum.BytesSent), plain.Count(sum.BlobsMounted, "blob"), sum.BlobsPresent, took.Round(100*time.Millisecond))
	return nil
}
