package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/download"
	"github.com/kkbundle/kkbundle/bundle/pull"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/adopt"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/handover"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/registry/dirlock"
)

var errInterrupted = errors.New("interrupted; run the same command again to continue")

// An interruptedOverError is errInterrupted for a build without a cache.
type interruptedOverError struct{}

func (*interruptedOverError) Error() string {
	return "interrupted; --no-cache keeps nothing: the same command starts over"
}

func (*interruptedOverError) Is(target error) bool { return target == errInterrupted }

// An interruptedDownloadError is errInterrupted for a run that downloaded into the cache, perhaps a Git repository.
type interruptedDownloadError struct{ git bool }

func (e *interruptedDownloadError) Error() string {
	but := ""
	if e.git {
		but = ", but no part of a Git repository"
	}
	return "interrupted; the cache keeps what was downloaded (kkbundle cache ls)" + but +
		": run the same command again to continue"
}

func (*interruptedDownloadError) Is(target error) bool { return target == errInterrupted }

// interrupted returns the error of an interrupted run: downloaded, if it downloaded into the cache. It keeps failed
// items and drops the error of ctx.
func interrupted(ctx context.Context, err error, downloaded *interruptedDownloadError) error {
	var (
		failed *fetch.Errors
		over   *builder.NoCacheError
		what   = errInterrupted
	)
	switch {
	case errors.As(err, &over):
		what = &interruptedOverError{}
	case downloaded != nil:
		what = downloaded
	}
	switch {
	case errors.As(err, &failed):
		return errors.Join(what, failed)
	case errors.Is(err, context.Cause(ctx)), errors.Is(err, context.Canceled):
		return what
	}
	return errors.Join(what, err)
}

// A pushError is an error of a push.
type pushError struct{ error }

func (e *pushError) Unwrap() error { return e.error }

// An exitClass is a row of the table of exit codes. A number never changes its meaning; 2 is the code of Go's crashes.
type exitClass struct {
	code int
	text string
	is   func(error) bool
}

// exitClasses returns the table. The first matching class counts.
func exitClasses() []exitClass {
	return []exitClass{
		{129, "interrupted by SIGHUP: the session ended", func(err error) bool { return endedBy(err, syscall.SIGHUP) }},
		{
			141, "interrupted by SIGPIPE: nobody reads the output",
			func(err error) bool { return endedBy(err, syscall.SIGPIPE) },
		},
		{130, "interrupted", func(err error) bool { return errors.Is(err, errInterrupted) }},
		{64, "wrong command line", func(err error) bool {
			return asError[*usage.Error](err) || asError[*engine.SelectionError](err) ||
				asError[*engine.LimitError](err) || asError[*deploy.ValueError](err)
		}},
		{20, "bundle not signed by a trusted key, or older than one accepted before", func(err error) bool {
			return asError[*signatureError](err) || asError[*rollbackError](err)
		}},
		{10, "manifest, cluster, inventory or lock missing or invalid", func(err error) bool {
			return asError[document.Problems](err) || asError[*builder.InputError](err) ||
				asError[*manifest.StaleError](err)
		}},
		{11, "bundle damaged or not readable by this version", func(err error) bool {
			return errors.Is(err, bundle.ErrDamaged) || errors.Is(err, bundle.ErrUnsupported)
		}},
		{12, "precheck found something that blocks, or the cluster is not in a state for it", func(err error) bool {
			return asError[*precheck.BlockedError](err) || asError[*member.OtherClusterError](err) ||
				asError[*begin.ForeignError](err) || asError[*begin.OwnedError](err) || asError[*task.KeepError](err) ||
				asError[*begin.NoClusterError](err) ||
				asError[*upgrade.UnfitError](err) || asError[*upgrade.RefusedError](err) ||
				asError[*upgrade.NoWayBackError](err) || asError[*upgrade.ChangesError](err) ||
				asError[*begin.WithoutError](err) || asError[*rotate.MoveError](err) ||
				asError[*begin.NamelessError](err) || asError[*kubeadm.TakenError](err) ||
				asError[*kubeadm.RotationError](err) || asError[*deploy.TakenError](err) ||
				asError[*adopt.RefusedError](err) || asError[*adopt.DiffersError](err) ||
				asError[*adopt.NotUndoneError](err) || asError[*reset.AdoptedError](err) ||
				asError[*handover.RefusedError](err) || asError[*handover.AtWorkError](err)
		}},
		{13, "host or API server unreachable, or login refused", func(err error) bool {
			return asError[*deploy.UnreachableError](err) || asError[*precheck.UnreachableError](err) ||
				asError[*host.UnreachableError](err) || asError[*host.SudoError](err) ||
				asError[*host.SlowError](err) ||
				asError[*host.HelperError](err)
		}},
		{24, "bundle encrypted, and no given key decrypts it", asError[*agefile.EncryptedError]},
		{14, "some items could not be fetched; the rest is kept", asError[*fetch.Errors]},
		{15, "registry or web server refused or unreachable", func(err error) bool {
			return asError[*pushError](err) || asError[*pull.RefusedError](err) ||
				asError[*download.ServerError](err) || asError[*deploy.RegistryError](err)
		}},
		{17, "another run is at work there", func(err error) bool {
			return asError[*task.LockedError](err) || asError[*deploy.LockedError](err) ||
				asError[*deploy.BusyError](err) ||
				asError[*dirlock.LockedError](err) || asError[*download.BusyError](err)
		}},
		{23, "the cluster is not healthy", asError[*health.UnhealthyError]},
		{18, "a chart or YAML could not be searched for images or has an invalid one, or --strict found something undecided", func(err error) bool {
			return asError[*builder.FindError](err) || asError[*builder.UndecidedError](err)
		}},
		{19, "the cache had damaged entries", asError[*cacheDamageError]},
		{
			21, "something that is needed is missing",
			func(err error) bool { return asError[*builder.ClosureError](err) || asError[*deploy.MissingError](err) },
		},
		{16, "install stopped on a host, or deploy at a release", func(err error) bool {
			return asError[*engine.TaskError](err) || asError[*deploy.PartError](err) ||
				asError[*deploy.ObjectError](err)
		}},
		{25, "the upgrade is not complete, as its flags say: a further run goes on, after --canary one without it", asError[*upgrade.PausedError]},
		{22, "precheck warned, with --fail-on warn; certificates end soon, with --fail", func(err error) bool {
			return asError[*precheckWarnedError](err) || asError[*expiringError](err)
		}},
		{1, "failed otherwise; with --exit-code: there are differences", func(err error) bool { return err != nil }},
	}
}

func asError[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	for _, c := range exitClasses() {
		if c.is(err) {
			return c.code
		}
	}
	return 1
}

func exitCodeHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n    0  done")
	for _, c := range slices.SortedFunc(slices.Values(exitClasses()),
		func(a, b exitClass) int { return cmp.Compare(a.code, b.code) }) {
		fmt.Fprintf(&b, "\n  %3d  %s", c.code, c.text)
	}
	return b.String()
}

// printError prints an error, and its remedy if it has one.
func printError(w io.Writer, err error) {
	_, _ = fmt.Fprintf(w, "kkbundle: %s\n", plain.Lines(strings.ReplaceAll(strings.TrimSpace(err.Error()), "\t",
		"    ")))
	if h := hint(err); h != "" {
		_, _ = fmt.Fprintf(w, "  -> %s\n", plain.Lines(h))
	}
}

func hint(err error) string {
	var hinted interface{ Hint() string }
	switch {
	case errors.As(err, &hinted):
		return hinted.Hint()
	case errors.Is(err, bundle.ErrDamaged):
		return "copy the bundle again from where it was built, or build it again, and check it with kkbundle verify"
	}
	return ""
}

// failed prints the error that ends the run as an event.
func (g *globals) failed(err error) {
	one := terminal.Event{
		Event: "error", Message: strings.TrimSpace(err.Error()), ExitCode: exitCode(err),
		Hint: hint(err),
	}
	if items, ok := errors.AsType[*fetch.Errors](err); ok {
		for _, f := range items.Failed {
			name := terminal.ItemName{Kind: f.Kind, Ref: f.Ref, Platform: f.Platform}
			one.Failed = append(one.Failed, terminal.FailedItem{ItemName: name, Message: f.Err.Error()})
		}
	}
	g.Emit(one)
}
