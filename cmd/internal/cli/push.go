package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

type pushOptions struct {
	registryFlags
	registry, git             string
	dryRun, recheck, gitForce bool
	items, platforms, renames []string
	group                     groupFlag
	harbor                    harborFlags
	rate                      usage.Rate
}

func newPushCmd(g *globals) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push (--registry HOST[/PREFIX] | --git ADDRESS) BUNDLE",
		Short: "Push the items of a bundle to a registry, or to a Git server",
		Long: `Pushes images with their referrers (signatures, attestations), charts and files to an OCI registry, directly from the
bundle. Existing content is not sent again, and every tag's digest is compared afterwards. A repeated push continues.
The blobs of an existing manifest are assumed to exist; --recheck asks for each. - reads the bundle from standard
input without a temporary file; a named pipe works too.

Names are HOST[/PREFIX]/<upstream host>/<path>; a port in the upstream host becomes _port. --rename changes the path
after HOST[/PREFIX]/; the first matching rule counts. With --platform, images keep their index if the registry accepts
sparse indexes, and otherwise get a smaller one, which is reported. Credentials come from docker's configuration and
its helpers, or from --username and --password-stdin; proxies from HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

` + itemsHelp + `
With --group, the items of other groups stay behind, and so do images that only their charts need.

On Harbor, missing projects are created: one for each upstream host, or the one of --registry HOST/PROJECT.

With --git, the bundle's Git repositories are pushed to ADDRESS/NAME.git on Gitea, GitLab or another Git server, which
must have them, or create them at a push. Only what is missing is sent. Refs of the server that the bundle lacks stay. A
ref with commits that the bundle's history does not continue is refused, without --git-force. Logins come from netrc
(~/.netrc or $NETRC), or from --username and --password-stdin. Guide: docs/build/git.md`,
		Example: `  kkbundle push --registry harbor.site/mirror site-1.4.0.kkb
  kkbundle push --registry harbor.site --rename docker.io/library=base --harbor-quota 50GiB --harbor-robot hosts site-1.4.0.kkb
  kkbundle push --registry 10.0.0.3:5000 --dry-run --item 'docker.io/*' --item chart/ingress-nginx --platform linux/arm64 site-1.4.0.kkb
  kkbundle push --registry 10.0.0.3:5000 --ca registry-ca.pem --username ops --password-stdin site-1.4.0.kkb < password
  ssh build cat site-1.4.0.kkb | kkbundle push --registry harbor.site -
  kkbundle push --git https://gitea.site/mirror site-1.4.0.kkb`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error { return runPush(cmd.Context(), g, args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.registry, "registry", "", "the registry, host[:port][/prefix]")
	o.addGit(f)
	o.registryFlags.add(f)
	f.StringArrayVar(&o.items, "item", nil, "push only this item (may be repeated; * matches any characters)")
	o.group.add(f, "push")
	f.StringArrayVar(&o.platforms, "platform", nil, "push only these platforms of images and files (repeated)")
	f.StringArrayVar(&o.renames, "rename", nil,
		"FROM=TO: push repositories below the upstream name FROM below TO (repeated)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be sent, and change nothing")
	f.BoolVar(&o.recheck, "recheck", false, "ask for every blob, even if its manifest exists")
	o.harbor.add(f)
	o.rate.AddFor(f, "to the registry")
	g.addAccept(f)
	return cmd
}

func runPush(ctx context.Context, g *globals, path string, o pushOptions) error {
	if o.git != "" {
		return runPushGit(ctx, g, path, o)
	}
	start := time.Now()
	if err := errors.Join(o.check(), o.checkPipe(path)); err != nil {
		return err
	}
	options, err := o.library(ctx, g)
	if err != nil {
		return err
	}
	g.trust.unrecorded = o.dryRun
	from, err := g.openPushSource(ctx, path, int(o.jobs))
	if err != nil {
		return err
	}
	defer from.Close()
	set, err := o.group.of(from.index)
	if err != nil {
		return err
	}
	if options.Select, err = itemSelection(o.items, set, from.index.Items); err != nil {
		return err
	}
	if err := withoutGit(g, from.index.Items, options.Select); err != nil {
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

// withoutGit says that Git repositories are not pushed to a registry. It is an error if nothing else is selected.
func withoutGit(g *globals, items []bundle.Item, selects func(bundle.Item) bool) error {
	repositories, others := 0, 0
	for _, it := range items {
		switch {
		case selects != nil && !selects(it):
		case it.Kind == bundle.KindGit:
			repositories++
		case registry.Pushable(it.Kind):
			others++
		}
	}
	switch {
	case repositories == 0:
		return nil
	case others == 0:
		return usage.Errorf("%s selected, and nothing for a registry; push with --git ADDRESS",
			plain.Count(repositories, "Git repository"))
	}
	g.Note("not for a registry: %s of the bundle; push with --git ADDRESS", plain.Count(repositories, "Git repository"))
	return nil
}

// pushResult is the JSON output of push.
type pushResult struct {
	Version int `json:"version"` // 1
	registry.PushSummary
}

// check returns errors of the command line.
func (o *pushOptions) check() error {
	if o.registry == "" {
		return usage.Errorf("name the registry with --registry HOST[/PREFIX], or a Git server with --git ADDRESS")
	}
	if o.gitForce {
		return usage.Errorf("--git-force goes with --git")
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
func (o *pushOptions) library(ctx context.Context, g *globals) (registry.PushOptions, error) {
	options := registry.PushOptions{
		Registry: o.registry, Jobs: int(o.jobs), DryRun: o.dryRun, Recheck: o.recheck, Harbor: o.harbor.options(),
		Logger: g.Logger(),
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
	if options.Auth, err = o.keychain(g); err != nil {
		return options, err
	}
	t, plainHTTP, err := o.transport(ctx, g, o.registry)
	if err != nil {
		return options, err
	}
	options.Transport, options.PlainHTTP = o.rate.Limit().Transport(t), plainHTTP
	return options, nil
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
			plain.Count(sum.ItemsMissing, "item"), o.registry, plain.Size(sum.BytesMissing),
			plain.Count(sum.ItemsPresent, "item"))
		return nil
	}
	g.Note("%s in %s: %s sent, %s mounted, %d there already (%s)",
		plain.Count(sum.ItemsPushed+sum.ItemsPresent, "item"), o.registry, plain.Size(sum.BytesSent),
		plain.Count(sum.BlobsMounted, "blob"), sum.BlobsPresent, took.Round(100*time.Millisecond))
	return nil
}

// harborFlags are for settings of Harbor.
type harborFlags struct {
	public           bool
	quota            usage.Size
	robot, robotFile string
}

func (h *harborFlags) add(f *pflag.FlagSet) {
	h.quota.Least = 1
	f.BoolVar(&h.public, "harbor-public", false, "Harbor: create public projects (default private)")
	f.Var(&h.quota, "harbor-quota", "Harbor: storage quota of created projects, such as 50GiB (default Harbor's)")
	f.StringVar(&h.robot, "harbor-robot", "",
		"Harbor: create a robot account of this name with pull access to the projects; its secret is shown once")
	f.StringVar(&h.robotFile, "robot-file", "",
		"write the robot account's name and secret to this file (0600) instead of showing them")
}

func (h *harborFlags) check() error {
	if h.robot == "" && h.robotFile != "" {
		return usage.Errorf("--robot-file needs --harbor-robot NAME")
	}
	if h.robot == "" {
		return nil
	}
	if err := harbor.CheckRobot(h.robot); err != nil {
		return usage.Errorf("--harbor-robot: %w", err)
	}
	if h.robotFile == "" {
		return nil
	}
	if err := disk.CheckOutput(h.robotFile); err != nil || !occupied(h.robotFile) {
		return err
	}
	var have robotAccount
	data, err := builder.ReadFile(h.robotFile)
	if err == nil && (json.Unmarshal(data, &have) != nil || have.Secret == "") {
		err = usage.Errorf("%s exists and is not a file of --robot-file: name another file", plain.Line(h.robotFile))
	}
	return err
}

// A robotAccount is the content of --robot-file.
type robotAccount struct {
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

func (h *harborFlags) options() *registry.HarborOptions {
	return &registry.HarborOptions{Public: h.public, Quota: h.quota.Bytes, Robot: h.robot}
}

// handOver writes the robot account's secret to --robot-file or standard output, never to a log. If the file cannot
// be written, it prints the secret.
func (h *harborFlags) handOver(g *globals, sum *registry.PushSummary) error {
	if sum.Harbor == nil || sum.Harbor.Robot == nil {
		return nil
	}
	r := sum.Harbor.Robot
	if r.Secret == "" {
		g.Note("robot account %s was there already and may pull from all projects; Harbor tells no secret twice",
			r.Name)
		return nil
	}
	if h.robotFile != "" {
		data, err := json.Marshal(robotAccount{r.Name, r.Secret})
		if err == nil {
			err = disk.WriteFile(h.robotFile, 0o600, bytes.NewReader(append(data, '\n')))
		}
		if err == nil {
			r.Secret = ""
			g.Note("robot account %s may pull; its secret is in %s", r.Name, h.robotFile)
			return nil
		}
		if g.JSON {
			return err // the document has the secret
		}
		return errors.Join(err, printRobot(g, r))
	}
	if g.JSON {
		return nil
	}
	return printRobot(g, r)
}

func printRobot(g *globals, r *registry.HarborRobot) error {
	g.Note("robot account that may pull, and its secret, which is not shown again:")
	_, err := fmt.Fprintf(g.Out, "%s %s\n", plain.Line(r.Name), plain.Line(r.Secret))
	return err
}

// A pushSource is a bundle to push: a file, parts, or a pipe.
type pushSource struct {
	io.Closer
	index bundle.Index
	push  func(ctx context.Context, o registry.PushOptions) (registry.PushSummary, error)
}

func (g *globals) openPushSource(ctx context.Context, path string, jobs int) (pushSource, error) {
	pipe, err := g.openPipe(path)
	if err != nil {
		return pushSource{}, err
	}
	if pipe == nil {
		r, err := g.openAccepted(ctx, path)
		if err != nil {
			return pushSource{}, err
		}
		return pushSource{r, r.Index(), func(ctx context.Context,
			o registry.PushOptions,
		) (registry.PushSummary, error) {
			return registry.Push(ctx, r, o)
		}}, nil
	}
	s, err := g.openStream(ctx, path, pipe, jobs)
	if err != nil {
		return pushSource{}, errors.Join(err, pipe.Close())
	}
	return pushSource{pipe, s.Index(), func(ctx context.Context,
		o registry.PushOptions,
	) (registry.PushSummary, error) {
		return registry.PushStream(ctx, s, o)
	}}, nil
}

// checkPipe returns an error if bundle and password both come from standard input.
func (o *pushOptions) checkPipe(path string) error {
	if path == standardStream && o.passwordStdin {
		return usage.Errorf("the password and the bundle cannot both come on standard input: run kkbundle login before, or name the bundle's file or pipe")
	}
	return nil
}

// itemSelection returns a filter for --item and --group. A pattern without a match is an error.
func itemSelection(patterns []string, of groups.Set, items []bundle.Item) (func(bundle.Item) bool, error) {
	switch {
	case len(patterns) == 0 && of.All():
		return nil, nil //nolint:nilnil // everything is pushed
	case len(patterns) == 0:
		return of.Has, nil
	}
	items = of.Items(items)
	type key struct {
		kind, ref, platform string
		digest              digest.Digest
	}
	keyOf := func(it bundle.Item) key {
		return key{it.Kind, it.Ref, bundle.PlatformString(it.Descriptor.Platform), it.Descriptor.Digest}
	}
	chosen := map[key]bool{}
	var errs []error
	for _, pattern := range patterns {
		found := transfer.Matching(items, pattern)
		if len(found) == 0 {
			errs = append(errs, fmt.Errorf("--item %q: %w", pattern, transfer.NewNoItemError(items, pattern)))
		}
		for _, it := range found {
			chosen[keyOf(it)] = true
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &usage.Error{Err: err}
	}
	return func(it bundle.Item) bool { return chosen[keyOf(it)] }, nil
}

// platformFlags returns --platform in canonical form.
func platformFlags(texts []string) ([]string, error) {
	var out []string
	var errs []error
	for _, text := range texts {
		p, err := scalar.PlatformString(text)
		errs = append(errs, err)
		out = append(out, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usage.Errorf("--platform: %w", err)
	}
	return out, nil
}
