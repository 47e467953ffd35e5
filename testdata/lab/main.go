// Lab is the end-to-end lab of kkbundle: genuine software, an upstream that has it, and hosts without a way out. Its
// README says what each command does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
	"github.com/kkbundle/kkbundle/testdata/lab/upstream"
)

const usage = `usage: lab COMMAND
  needs    [--small]                              install the Debian packages that the lab needs (root)
  build    [--small] [--with EXTRA,...]           make the software, images and root file system that are not there yet
  upstream [--small] [--with EXTRA,...] [--listen A] [--state DIR]
                                                  serve them like the upstreams do, until interrupted
  compare  [--state DIR] UPSTREAM SITE IMAGE...   pull images from a site's registry, and compare them with the upstream's
  up       [--hosts N] [--os RELEASE,...] [--state DIR]
                                                  boot N hosts without a way out (root, like all below), of these
                                                  Debian releases in turn: bullseye, bookworm (default), trixie
  exec     [--state DIR] COMMAND...               run a command in the hosts' network, beside them
  ssh      [--state DIR] HOST COMMAND...          run a command on a host as root
  kill|stop|start [--state DIR] HOST              pull the plug, switch off, switch on
  link     [--state DIR] HOST up|down             plug the network cable in or out
  packets  [--state DIR]                          count what the hosts sent elsewhere
  down     [--state DIR]                          remove the hosts and everything of theirs
  vm       up|ssh|kill|start|pause|down [--hosts N] [--memory MIB] [--kernel-args A] [--arch amd64|arm64] [--state DIR] [HOST [COMMAND...]]
                                                  the same with virtual machines; pause stops HOST for COMMAND's duration`

// checkout is kkbundle's, as seen from the directory where the commands run.
const checkout = "../.."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && err.Error() == exit.Error(): // the attached command has said why
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

// args are the flags and the rest of the command line.
type args struct {
	state, listen string
	small         bool
	with          []software.Extra
	hosts, memory int
	releases      []software.Release
	kernelArgs    string
	arch          string
	rest          []string
}

func run(ctx context.Context, argv []string) error {
	if len(argv) == 0 {
		return errors.New(usage)
	}
	if argv[0] == "vm" && len(argv) > 1 {
		a, err := parse(argv[1:])
		if err != nil {
			return err
		}
		return machines(ctx, argv[1], a)
	}
	a, err := parse(argv)
	if err != nil {
		return err
	}
	switch argv[0] {
	case "needs":
		return software.Install(ctx, a.small, os.Stderr)
	case "build":
		_, err := software.Build(ctx, software.Options{
			Small: a.small, With: a.with, Checkout: checkout, Log: os.Stderr,
		})
		return err
	case "upstream":
		return serve(ctx, a)
	case "compare":
		const least = 3
		if len(a.rest) < least {
			return errors.New(usage)
		}
		return upstream.Compare(ctx, upstream.Comparison{
			State: a.state, Upstream: a.rest[0], Site: a.rest[1],
			Images: a.rest[2:],
		}, os.Stdout)
	case "up":
		return up(ctx, a)
	}
	return withLab(ctx, argv[0], a)
}

func parse(argv []string) (a args, err error) {
	flags := flag.NewFlagSet(argv[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&a.small, "small", false, "")
	flags.Func("with", "", func(list string) error {
		for name := range strings.SplitSeq(list, ",") {
			a.with = append(a.with, software.Extra(name))
		}
		return nil
	})
	flags.IntVar(&a.hosts, "hosts", 2, "")
	flags.Func("os", "", func(list string) (err error) {
		a.releases, err = software.ParseReleases(list)
		return err
	})
	flags.IntVar(&a.memory, "memory", 3072, "")
	flags.StringVar(&a.kernelArgs, "kernel-args", "", "")
	flags.StringVar(&a.arch, "arch", runtime.GOARCH, "")
	flags.StringVar(&a.state, "state", "", "")
	flags.StringVar(&a.listen, "listen", "127.0.0.1:0", "")
	if err := flags.Parse(argv[1:]); err != nil {
		return a, fmt.Errorf("%w\n%s", err, usage)
	}
	a.rest = flags.Args()
	if a.state == "" {
		dir, err := software.DefaultDir()
		if err != nil {
			return a, err
		}
		a.state = filepath.Join(dir, "state")
	}
	return a, nil
}

func up(ctx context.Context, a args) error {
	s, err := software.Build(ctx, software.Options{Hosts: a.releases, Log: os.Stderr})
	if err != nil {
		return err
	}
	l, err := hosts.Up(ctx, hosts.Options{
		State: a.state, RootFS: s.RootFS, Roots: s.RootsOf(a.releases),
		Hosts: a.hosts, Log: os.Stderr,
	})
	if err != nil {
		return err
	}
	for _, h := range l.Hosts {
		fmt.Println(h.Name, h.Address)
	}
	return nil
}

// withLab runs the commands for a lab that is up.
func withLab(ctx context.Context, command string, a args) error {
	l, err := hosts.Open(a.state, os.Stderr)
	if command == "down" && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch command {
	case "exec":
		if len(a.rest) == 0 {
			return errors.New(usage)
		}
		return attach(l.Command(ctx, a.rest[0], a.rest[1:]...))
	case "packets":
		p, err := l.Packets(ctx)
		if err == nil {
			fmt.Printf("left %d\nasked %d\nno way %d\n", p.Left, p.Asked, p.NoWay)
		}
		return err
	case "down":
		return l.Down(ctx)
	}
	return withHost(ctx, l, command, a.rest)
}

// named returns the host whose number is the first argument.
func named[H any](host func(int) (H, error), rest []string) (h H, err error) {
	if len(rest) == 0 {
		return h, errors.New(usage)
	}
	n, err := strconv.Atoi(rest[0])
	if err != nil {
		return h, fmt.Errorf("host %q: a number from 1 is wanted", rest[0])
	}
	return host(n)
}

func withHost(ctx context.Context, l *hosts.Lab, command string, rest []string) error {
	h, err := named(l.Host, rest)
	if err != nil {
		return err
	}
	switch {
	case command == "ssh" && len(rest) > 1:
		return attach(l.SSH(ctx, h, strings.Join(rest[1:], " ")))
	case command == "kill":
		return l.Kill(ctx, h)
	case command == "stop":
		return l.Stop(ctx, h)
	case command == "start":
		return l.Start(ctx, h)
	case command == "link" && len(rest) == 2 && (rest[1] == "up" || rest[1] == "down"):
		return l.Link(ctx, h, rest[1] == "up")
	}
	return errors.New(usage)
}

func attach(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// serve runs the upstream until it is interrupted. Its address is printed once it answers.
func serve(ctx context.Context, a args) error {
	content, err := software.Build(ctx, software.Options{
		Small: a.small, With: a.with, Checkout: checkout, Log: os.Stderr,
	})
	if err != nil {
		return err
	}
	//nolint:contextcheck // Close ends it
	s, err := upstream.Start(upstream.Options{
		Content: content.Upstream, Extra: content.Extra, State: a.state,
		Listen: a.listen, Small: a.small,
	})
	if err != nil {
		return err
	}
	fmt.Println(s.Addr)
	<-ctx.Done()
	return s.Close()
}
