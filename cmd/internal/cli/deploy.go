package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
	"github.com/kkbundle/kkbundle/registry"
)

// kubeFlags select a cluster.
type kubeFlags struct{ kubeconfig, context string }

func (k *kubeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG, else ~/.kube/config)")
	f.StringVar(&k.context, "context", "", "`context` of the kubeconfig (default its current one)")
}

// config reads the kubeconfig as kubectl does, with its programs for credentials.
func (k *kubeFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: k.context}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err) && k.kubeconfig != "":
		return nil, usage.Errorf("kubeconfig %s names no cluster: name another file with --kubeconfig", k.kubeconfig)
	case clientcmd.IsEmptyConfig(err):
		return nil, usage.Errorf("no kubeconfig that names a cluster (looked for %s): name one with --kubeconfig FILE",
			strings.Join(rules.GetLoadingPrecedence(), ", "))
	case err != nil:
		return nil, &usage.Error{Err: fmt.Errorf("kubeconfig: %w", err)}
	}
	return config, nil
}

type deployOptions struct {
	kubeFlags
	registryFlags
	ownRegistryFlags
	registry, pullSecret                 string
	renames, values, sets                []string
	groups                               site.GroupFlag
	dryRun, noPush, adopt, forced, prune bool
	redirect                             bool
	redirectNamespaces                   []string
}

func newDeployCmd(g *globals) *cobra.Command {
	var o deployOptions
	cmd := &cobra.Command{
		Use:   "deploy {--registry HOST[/PREFIX] | --own-registry} BUNDLE",
		Short: "Install the charts and YAML of a bundle into any cluster",
		Long: `Pushes a bundle to a registry, and installs or upgrades the charts and YAML that its manifest lists under deploy, in
that order, into the cluster of a kubeconfig. Without deploy in the manifest, they are the addons of the bundle's
cluster file. The cluster needs nothing of kkbundle; its nodes must be able to pull from the registry. Begin with
--dry-run.

What happens: every image in the objects must be in the bundle, or nothing changes. deploy rewrites image references
in the objects: registry of the site, digests of the bundle. In custom resources it does so where imageRules of the
manifest name the place. Namespaces are created. If the registry needs a login, each namespace gets a pull secret,
from --pull-secret or else with the login of this command. A repeated run changes nothing if nothing differs. Two runs
into one cluster exclude each other. With Ctrl-C, finished releases stay, and the next run continues.

  --redirect-pods   pods that operators make later pull from the registry, too, by an admission policy of the API
                    server (CEL, no webhook). Later runs keep it up to date; =false removes it. Without it, deploy
                    warns of such images
  --own-registry    puts a registry into the cluster first; every node pulls from it on its own loopback address.
                    docs/site/deploy-registry.md says where this was tested
  --set, --values   values of the bundle's table that are given at the site; missing ones are asked for. The cluster
                    remembers them for the next run, secret ones in a Secret. docs/build/values.md
  --group           switches groups of the bundle on (NAME) or off (NAME=off). The cluster remembers every group's word,
                    so that a new default of a newer bundle changes nothing. docs/build/composition.md
  --prune           removes what an earlier version of the bundle had and this one lacks; without it, it is named.
                    Namespaces, custom resource definitions and volume claims of YAML stay

A chart that fails is rolled back, unless its entry says onFailure: keep. YAML is not rolled back: deploy the earlier
bundle again, with --prune. Guide: docs/site/deploy.md.`,
		Example: `  kkbundle deploy --registry harbor.site/mirror site-1.4.0.kkb
  kkbundle deploy --kubeconfig prod.conf --registry harbor.site --pull-secret robot.json site-1.4.0.kkb
  kkbundle deploy --registry harbor.site --values web=prod.yaml --set web=replicas=3 --dry-run site-1.4.0.kkb`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDeploy(cmd.Context(), g, args[0], o, o.redirecting(cmd.Flags()))
		},
	}
	f := cmd.Flags()
	o.kubeFlags.add(f)
	f.StringVar(&o.registry, "registry", "",
		"the registry, host[:port][/prefix], as this machine and the nodes reach it (this or --own-registry is required)")
	o.ownRegistryFlags.add(f)
	o.registryFlags.add(f)
	f.StringVar(&o.pullSecret, "pull-secret", "",
		"docker configuration `file` (config.json) that nodes pull with (default the login of this command)")
	f.StringArrayVar(&o.renames, "rename", nil,
		"FROM=TO: push repositories below the upstream name FROM below TO (repeated)")
	f.StringArrayVarP(&o.values, "values", "f", nil,
		"RELEASE=FILE: values file of a release, over the bundle's values; FILE alone: values of the bundle's table (repeated)")
	f.StringArrayVar(&o.sets, "set", nil,
		"RELEASE=PATH=VALUE: one value of a release, as in helm's --set; NAME=VALUE: one of the bundle's table (repeated)")
	o.groups.Add(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "print the differences from the live objects, and change nothing")
	f.BoolVar(&o.noPush, "no-push", false, "do not push: the registry has the bundle already, which is checked")
	f.BoolVar(&o.adopt, "adopt", false, "take over releases of the same name that were installed without kkbundle")
	f.BoolVar(&o.forced, "force-conflicts", false, "take over fields of YAML's objects that other programs own")
	o.addRedirect(f)
	f.BoolVar(&o.prune, "prune", false,
		"remove releases and objects of YAML that an earlier version of the bundle had and this one lacks")
	g.addAccept(f)
	cmd.AddCommand(newDeployListCmd(g), newDeployRemoveCmd(g), newDeployRegistryCmd(g))
	return cmd
}

func (o *deployOptions) addRedirect(f *pflag.FlagSet) {
	f.BoolVar(&o.redirect, "redirect-pods", false,
		"also lead the pods that operators and jobs make to the registry, with an admission policy (Kubernetes v1.36 or later)")
	f.StringArrayVar(&o.redirectNamespaces, "redirect-namespace", nil,
		"`namespace` of such pods, besides those of the releases and their custom resources (repeated)")
}

// redirecting returns the decision of the flags about the admission policy.
func (o *deployOptions) redirecting(f *pflag.FlagSet) deploy.Redirecting {
	switch {
	case o.redirect, !f.Changed("redirect-pods") && len(o.redirectNamespaces) > 0:
		return deploy.RedirectPods
	case f.Changed("redirect-pods"):
		return deploy.RedirectNothing
	}
	return deploy.RedirectAsBefore
}

func runDeploy(ctx context.Context, g *globals, path string, o deployOptions, redirect deploy.Redirecting) (err error) {
	if err := o.checkRegistry(); err != nil {
		return err
	}
	if err := o.registryFlags.check(); err != nil {
		return err
	}
	if err := o.checkValues(); err != nil {
		return err
	}
	words, err := o.groups.Words()
	if err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	// begins with the push: what precedes it takes time, too
	meter := sync.OnceValue(func() *terminal.Meter { return g.NewMeter("push") })
	at, err := o.target(ctx, g, func(e registry.Event) { meter().Set(e.Done, e.Total) })
	if err != nil {
		return err
	}
	g.trust.unrecorded = o.dryRun
	r, err := g.openAccepted(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ofReleases, given, err := o.siteValues(site.CarriedTable(ctx, &r.Catalog))
	if err != nil {
		return err
	}
	start := time.Now()
	report, err := deploy.Run(ctx, r, deploy.Options{
		Cluster: config, Registry: at, Values: ofReleases,
		Resolve: func(ctx context.Context, t values.Table, src *document.Tree,
			known []values.Given,
		) (*values.Set, error) {
			return t.Resolve(ctx, src, site.ValueOptions(g.Console, t, known, given))
		},
		Groups: words,
		By:     thisRun(), DryRun: o.dryRun, NoPush: o.noPush,
		Adopt: o.adopt, Force: o.forced, Prune: o.prune, Logger: g.Logger(),
		Redirect: redirect, RedirectNamespaces: o.redirectNamespaces,
		Progress: func(e deploy.Event) {
			if e.Part != "" {
				meter().Stop() // the push has ended
			}
			noteDeployment(g, e)
		},
	})
	meter().Stop()
	if err != nil && !g.JSON {
		noteUnfinished(ctx, g, report, o.dryRun)
		return err
	}
	return errors.Join(err, printDeployment(g, report, o, time.Since(start)))
}

// noteUnfinished prints the number of finished releases after a run that failed or was interrupted.
func noteUnfinished(ctx context.Context, g *globals, report *deploy.Report, dryRun bool) {
	done, state := len(report.Results), "stopped"
	if ctx.Err() != nil {
		state = "interrupted"
	}
	switch {
	case dryRun:
	case done == 0 && ctx.Err() != nil:
		g.Note("%s: no release was finished; run the same command again to continue", state)
	case done > 0:
		g.Note("%s: %s done and kept; the same command continues", state, plain.Count(done, "release"))
	}
}

func noteDeployment(g *globals, e deploy.Event) {
	text := e.Message
	if e.Part != "" {
		text = e.Part + ": " + text
	}
	if e.Warning {
		text = "warning: " + text
	}
	g.Note("%s", plain.Line(text))
}

// deployResult is the JSON output of deploy.
type deployResult struct {
	Version int  `json:"version"` // 1
	DryRun  bool `json:"dryRun,omitempty"`
	*deploy.Report
}

func printDeployment(g *globals, report *deploy.Report, o deployOptions, took time.Duration) error {
	if g.JSON {
		return g.PrintJSON(deployResult{1, o.dryRun, report})
	}
	for _, v := range report.Values {
		if v.Changed || o.dryRun {
			g.Note("value %s", plain.Line(v.String()))
		}
	}
	for _, one := range report.Groups {
		if one.Changed || o.dryRun {
			g.Note("group %s", plain.Line(one.String()))
		}
	}
	removed := ""
	if n := len(report.Removed); n > 0 {
		removed = fmt.Sprintf(", %d removed", n)
	}
	if o.dryRun {
		if report.Diff != "" {
			if err := g.Result("%s", strings.TrimSuffix(plain.Lines(report.Diff), "\n")); err != nil {
				return err
			}
		}
		if report.Pushed.Missing > 0 {
			g.Note("dry run: %s would be pushed to %s", plain.Count(report.Pushed.Missing, "item"),
				plain.Line(report.Registry))
		}
		g.Note("dry run: %d of %s would change%s. Nothing was changed", report.Changed(),
			plain.Count(len(report.Results), "release"), removed)
		return nil
	}
	if report.Pushed.Sent > 0 {
		g.Note("%s sent to %s", plain.Size(report.Pushed.Sent), plain.Line(report.Registry))
	}
	g.Note("%s %s: %s, %d changed%s (%s)", report.Name, report.Version, plain.Count(len(report.Results), "release"),
		report.Changed(), removed, took.Round(100*time.Millisecond))
	return nil
}

// given returns the registry of the flags, with the secret that nodes pull with.
func (o *deployOptions) given(ctx context.Context, g *globals) (deploy.Given, error) {
	push := pushOptions{registryFlags: o.registryFlags, registry: o.registry, renames: o.renames}
	if err := push.check(); err != nil {
		return deploy.Given{}, err
	}
	options, err := push.library(ctx, g)
	if err != nil {
		return deploy.Given{}, err
	}
	secret, err := o.secret(g, options.Auth)
	return deploy.Given{Endpoint: deploy.Endpoint{Pull: o.registry, PullSecret: secret, Options: options}}, err
}

// secret returns the docker configuration for nodes: the file, or the login of the push; nil without either.
func (o *deployOptions) secret(g *globals, keychain authn.Keychain) ([]byte, error) {
	host, _, _ := strings.Cut(o.registry, "/")
	if o.pullSecret != "" {
		data, err := builder.ReadFile(o.pullSecret)
		if err != nil {
			return nil, usage.FileError(err)
		}
		secret, err := pullSecret(data, host)
		if err != nil {
			return nil, usage.Errorf("--pull-secret %s: %w", o.pullSecret, err)
		}
		return secret, nil
	}
	at, err := name.NewRegistry(host)
	if err != nil {
		return nil, &usage.Error{Err: err}
	}
	login, err := keychain.Resolve(at)
	if err != nil {
		return nil, fmt.Errorf("login of %s: %w", host, err)
	}
	auth, err := login.Authorization()
	if err != nil {
		return nil, fmt.Errorf("login of %s: %w", host, err)
	}
	if auth.Username == "" && auth.IdentityToken+auth.RegistryToken != "" {
		return nil, usage.Errorf(
			"the login of %s is a token, which nodes cannot pull with; give them a login with --pull-secret FILE", host)
	}
	if auth.Username == "" {
		return nil, nil
	}
	g.Note("note: nodes pull with the login of this command, %s; --pull-secret gives them one that may only pull",
		plain.Line(auth.Username))
	one := map[string]string{
		"username": auth.Username, "password": auth.Password,
		"auth": base64.StdEncoding.EncodeToString([]byte(auth.Username + ":" + auth.Password)),
	}
	return json.Marshal(map[string]any{"auths": map[string]any{host: one}})
}

// pullSecret returns the part of a docker configuration that is about a registry. A person's file may have the logins
// of many, which are none of the cluster's business.
func pullSecret(data []byte, host string) ([]byte, error) {
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth,omitempty"`
			Username string `json:"username,omitempty"`
			Password string `json:"password,omitempty"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil { // its error repeats the text
		return nil, errors.New("not a docker configuration; kubectl create secret docker-registry --dry-run=client shows one")
	}
	for name, login := range file.Auths {
		at := strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
		if at, _, _ = strings.Cut(at, "/"); at == host && login.Auth+login.Username != "" {
			return json.Marshal(map[string]any{"auths": map[string]any{host: login}})
		}
	}
	return nil, fmt.Errorf("it has no login of %s under auths", host)
}

// checkValues checks --values and --set as far as no bundle is needed for it.
func (o *deployOptions) checkValues() error {
	for _, text := range o.values {
		if release, file, ok := strings.Cut(text, "="); ok && (release == "" || file == "") {
			return usage.Errorf("--values %s: want RELEASE=FILE, or FILE for values of the bundle", text)
		}
	}
	for _, text := range o.sets {
		if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
			return badSet(name)
		}
	}
	return nil
}

func badSet(name string) error { // without the value, which may be a secret
	return usage.Errorf("--set %s: want RELEASE=PATH=VALUE, or NAME=VALUE for a value of the bundle", name)
}

// siteValues reads --values and --set: values of releases, and those of the bundle's table.
func (o *deployOptions) siteValues(t values.Table) (releases []deploy.Value, given []values.Given, err error) {
	if err := o.checkValues(); err != nil {
		return nil, nil, err
	}
	var files, sets []string
	for _, text := range o.values {
		release, file, ok := strings.Cut(text, "=")
		if !ok && len(t) == 0 {
			return nil, nil, usage.Errorf("--values %s: want RELEASE=FILE; the bundle's manifest has no values for FILE alone", text)
		}
		if !ok {
			files = append(files, text)
			continue
		}
		data, err := builder.ReadFile(file)
		if err != nil {
			return nil, nil, usage.FileError(err)
		}
		releases = append(releases, deploy.Value{Release: release, File: file, Data: data})
	}
	for _, text := range o.sets {
		name, set, _ := strings.Cut(text, "=")
		_, known := t.Find(name)
		switch {
		case known:
			sets = append(sets, text)
		case !strings.Contains(set, "="):
			return nil, nil, badSet(name)
		default:
			releases = append(releases, deploy.Value{Release: name, Set: set})
		}
	}
	given, err = site.ReadValues(files, sets)
	return releases, given, err
}

// thisRun names this run for another one: user, machine and process.
func thisRun() string {
	who := "somebody"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%s (process %d)", who, host, os.Getpid())
}

func newDeployListCmd(g *globals) *cobra.Command {
	var o kubeFlags
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List what is deployed in a cluster, from which bundle",
		Long:    "Lists the bundles that kkbundle deploy installed into a cluster, with their releases and the state of each, as Helm names it.",
		Example: "  kkbundle deploy ls --kubeconfig prod.conf",
		Args:    takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			list, err := deploy.List(cmd.Context(), config, g.Logger())
			if err != nil {
				return err
			}
			return printDeployed(g, list)
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// deployedResult is the JSON output of deploy ls.
type deployedResult struct {
	Version int              `json:"version"` // 1
	Bundles []deployedBundle `json:"bundles"`
}

// deployedBundle is the record of a bundle. In all results, version is that of the result.
type deployedBundle struct {
	Name     string           `json:"name"`
	Version  string           `json:"bundleVersion"`
	Digest   string           `json:"digest"`
	Registry string           `json:"registry"`
	State    deploy.State     `json:"state"`
	By       string           `json:"by"`
	Changed  time.Time        `json:"changed"`
	Parts    []deploy.Part    `json:"parts"`
	Redirect *deploy.Redirect `json:"redirect,omitempty"` // of pods that others make
	// Namespaces were created by deploy. Pulls have a pull secret.
	Namespaces []string `json:"namespaces,omitempty"`
	Pulls      []string `json:"pulls,omitempty"`
}

func printDeployed(g *globals, list []*deploy.Record) error {
	if g.JSON {
		result := deployedResult{Version: 1, Bundles: []deployedBundle{}}
		for _, r := range list {
			result.Bundles = append(result.Bundles, deployedBundle{
				r.Name, r.Bundle, r.Digest, r.Registry, r.State, r.By, r.Changed, r.Parts, r.Redirect, r.Namespaces,
				r.Pulls,
			})
		}
		return g.PrintJSON(result)
	}
	if len(list) == 0 {
		g.Note("nothing is deployed")
		return nil
	}
	var rows [][]string
	for _, r := range list {
		for _, p := range r.Parts {
			what, state := "YAML", string(r.State)
			if p.Chart != "" {
				what, state = p.Chart+" "+p.Version, p.Status
			}
			if state == "" {
				state = "missing"
			}
			rows = append(rows, []string{
				r.Name, r.Bundle, string(r.State), p.String(), what, state,
				r.Changed.Local().Format(time.DateTime),
			})
		}
	}
	return g.PrintTable([]string{"BUNDLE", "VERSION", "STATE", "RELEASE", "CHART", "RELEASE STATE", "CHANGED"}, rows)
}

func newDeployRemoveCmd(g *globals) *cobra.Command {
	var o kubeFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove BUNDLE|NAME",
		Short: "Remove what deploy installed from a bundle",
		Long: `Removes the releases, objects and pull secrets that kkbundle deploy made for the bundle of a name, the last first.
Namespaces are removed if deploy created them and nothing else is in them. Custom resource definitions and volume
claims stay, since they hold data; the images in the registry stay too. An interrupted run is continued by the next.`,
		Example: `  kkbundle deploy remove shop
  kkbundle deploy remove --kubeconfig prod.conf --yes shop-1.4.0.kkb`,
		Args: takes("BUNDLE|NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDeployRemove(cmd.Context(), g, o, args[0], yes)
		},
	}
	o.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return deployedNames(cmd.Context(), o), cobra.ShellCompDirectiveDefault // files where no name fits
	}
	return cmd
}

// deployedNames returns the names of the deployed bundles for completion, none without a quick answer of the API
// server.
func deployedNames(ctx context.Context, o kubeFlags) []string {
	const patience = 2 * time.Second
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	config, err := o.config()
	if err != nil {
		return nil
	}
	list, err := deploy.List(ctx, config, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	var names []string
	for _, r := range list {
		names = append(names, r.Name)
	}
	return names
}

func runDeployRemove(ctx context.Context, g *globals, o kubeFlags, arg string, yes bool) error {
	bundleName := arg
	if info, err := os.Stat(arg); err == nil && !info.IsDir() { // a directory may have the name of a deployment
		r, err := g.openBundle(arg)
		if err != nil {
			return err
		}
		bundleName = r.Index().Name
		if err := r.Close(); err != nil {
			return err
		}
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	remove := deploy.RemoveOptions{
		Cluster: config, Name: bundleName, By: thisRun(), Logger: g.Logger(),
		Progress: func(e deploy.Event) { noteDeployment(g, e) },
	}
	if !yes {
		remove.Confirm = func(r *deploy.Record) error { return g.Confirm(removalQuestion(r, config.Host)) }
	}
	kept, err := deploy.Remove(ctx, remove)
	for _, one := range kept {
		g.Note("kept: %s", plain.Line(one))
	}
	if err != nil {
		return err
	}
	g.Note("%s is removed", plain.Line(bundleName))
	return nil
}

func removalQuestion(r *deploy.Record, server string) string {
	var parts []string
	for _, p := range r.Parts {
		parts = append(parts, p.String())
	}
	return fmt.Sprintf("Remove %s from %s (bundle %s %s)?", strings.Join(parts, ", "), server, r.Name, r.Bundle)
}
