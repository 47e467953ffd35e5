package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/git/smart"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/gitpush"
	"github.com/kkbundle/kkbundle/web/dial"
	"github.com/kkbundle/kkbundle/web/logins"
)

// pushedGit is the JSON output of push --git.
type pushedGit struct {
	Version      int              `json:"version"` // 1
	Repositories []gitpush.Pushed `json:"repositories"`
}

// addGit adds the flags of pushes to a Git server.
func (o *pushOptions) addGit(f *pflag.FlagSet) {
	f.StringVar(&o.git, "git", "", "push the Git repositories to this address and NAME.git")
	f.BoolVar(&o.gitForce, "git-force", false, "with --git: replace histories that the bundle's do not continue")
}

// runPushGit pushes the Git repositories of a bundle.
func runPushGit(ctx context.Context, g *globals, path string, o pushOptions) error {
	options, err := o.gitOptions(g, path)
	if err != nil {
		return err
	}
	g.trust.unrecorded = o.dryRun
	r, err := g.openAccepted(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close()
	set, err := o.group.of(r.Index())
	if err != nil {
		return err
	}
	if options.Select, err = itemSelection(o.items, set, r.Index().Items); err != nil {
		return err
	}
	done, err := gitpush.Push(ctx, r, options)
	if err != nil {
		err = &pushError{err}
	}
	if g.JSON {
		return errors.Join(err, g.PrintJSON(pushedGit{1, append([]gitpush.Pushed{}, done...)}))
	}
	sent := 0
	for _, one := range done {
		for _, c := range one.Refs {
			if c.State != smart.StateSame {
				sent++
			}
			if err := g.Result("%s %s %s %s", c.State, plain.Line(one.Address), plain.Line(c.Ref), c.New); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	if o.dryRun {
		g.Note("dry run: %s at %s would change. Nothing was changed", plain.Count(sent, "ref"), o.git)
		return nil
	}
	g.Note("%s changed at %s", plain.Count(sent, "ref"), o.git)
	return nil
}

// gitOptions returns the options of gitpush.Push that do not depend on the bundle.
func (o *pushOptions) gitOptions(g *globals, path string) (gitpush.Options, error) {
	options := gitpush.Options{Prefix: o.git, Force: o.gitForce, DryRun: o.dryRun, Logger: g.Logger()}
	switch {
	case o.registry != "":
		return options, usage.Errorf("--registry and --git push to one server each: run push twice")
	case o.recheck || len(o.renames)+len(o.platforms) > 0 || o.harbor != (harborFlags{quota: o.harbor.quota}):
		return options, usage.Errorf("--recheck, --rename, --platform and --harbor-* go with --registry")
	case path == standardStream:
		return options, usage.Errorf("Git repositories cannot be pushed from standard input: name the bundle's file")
	}
	prefix, err := gitpush.ParsePrefix(o.git)
	if err != nil {
		return options, usage.Errorf("--git: %w", err)
	}
	if prefix.Scheme == "http" && !o.plainHTTP && !sources.IsLoopback(prefix.Host) {
		return options, usage.Errorf("--git %s: the login would travel unencrypted; use https, or allow it with --plain-http",
			prefix)
	}
	if err := o.registryFlags.check(); err != nil {
		return options, err
	}
	t, err := dial.NewTransport(dial.Files{CA: o.ca, Cert: o.cert, Key: o.key})
	if err != nil {
		return options, err
	}
	options.Transport = o.rate.Limit().Transport(t)
	if o.username != "" || o.passwordStdin {
		if o.username == "" || !o.passwordStdin {
			return options, usage.Errorf("--username and --password-stdin go together; passwords are never taken from the command line")
		}
		options.Login.User = o.username
		options.Login.Password, err = readPassword(g.In)
		return options, err
	}
	known, err := logins.ReadNetrc()
	if err != nil {
		return options, fmt.Errorf("find the login: %w", err)
	}
	options.Login, _ = known.Find(prefix.Hostname())
	return options, nil
}
