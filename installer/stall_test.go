package installer

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A playedHost runs functions for commands.
type playedHost func(ctx context.Context, cmd host.Cmd) error

func (playedHost) String() string { return "node1" }

func (h playedHost) Run(ctx context.Context, cmd host.Cmd) error { return h(ctx, cmd) }

func (playedHost) Close() error { return nil }

func hang(ctx context.Context, _ host.Cmd) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestStalledCommands is by a clock of its own: nothing waits.
func TestStalledCommands(t *testing.T) {
	t.Parallel()
	every := func(d time.Duration, n int, do func()) {
		for range n {
			time.Sleep(d)
			do()
		}
	}
	const name = "silent for "
	for _, c := range []struct {
		what  string
		run   playedHost
		own   time.Duration // what the command is given beside the limit
		told  []string
		after time.Duration // it is ended; 0 if it is not
	}{
		{"hangs", hang, 0, []string{name + "2m: $ systemctl restart x", name + "4m: $ systemctl restart x", name +
			"8m: $ systemctl restart x"}, 15 * time.Minute},
		{"has a limit of its own", hang, time.Minute, []string{name + "2m: $ systemctl restart x", name +
			"4m: $ systemctl restart x", name + "8m: $ systemctl restart x"}, 16 * time.Minute},
		{"prints", func(_ context.Context, cmd host.Cmd) error {
			every(time.Minute, 60, func() { _, _ = io.WriteString(cmd.Stdout, ".") })
			return nil
		}, 0, nil, 0},
		{"complains", func(_ context.Context, cmd host.Cmd) error {
			every(time.Minute, 60, func() { _, _ = io.WriteString(cmd.Stderr, ".") })
			return nil
		}, 0, nil, 0},
		{"reads", func(_ context.Context, cmd host.Cmd) error {
			every(time.Minute, 60, func() { _, _ = cmd.Stdin.Read(make([]byte, 1)) })
			return nil
		}, 0, nil, 0},
		{"pauses", func(_ context.Context, cmd host.Cmd) error {
			every(3*time.Minute, 2, func() { _, _ = io.WriteString(cmd.Stdout, ".") })
			return nil
		}, 0, []string{name + "2m: $ systemctl restart x", name + "2m: $ systemctl restart x"}, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var told []string
				w := engine.Watch{Host: "node1", Limit: engine.StallLimit, Tell: func(e task.Event) {
					if e.State != task.Waiting || e.Phase != "container-runtime" || e.Task != "containerd" ||
						e.Host != "node1" {
						t.Errorf("told %+v", e)
					}
					told = append(told, e.Message)
				}}
				ctx := task.InTask(t.Context(), "container-runtime/containerd")
				if c.own > 0 {
					ctx = task.WithPatience(ctx, c.own)
				}
				begin := time.Now()
				cmd := host.Cmd{Args: []string{"systemctl"}, Stdin: strings.NewReader(strings.Repeat("x", 100))}
				err := w.Run(ctx, c.run, cmd, func() string { return "$ systemctl restart x" })
				var stalled *engine.StalledError
				if errors.As(err, &stalled) != (c.after > 0) || c.after > 0 && time.Since(begin) != c.after {
					t.Errorf("%v after %s", err, time.Since(begin))
				}
				if diff := cmp.Diff(told, c.told); diff != "" {
					t.Errorf("told (-got +want):\n%s", diff)
				}
			})
		})
	}
}

// TestStalledHost has one of two hosts hang in a task: it is named, ended and left, and the other goes on.
func TestStalledHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		r := &engine.Run{
			Options: engine.Options{StallLimit: engine.StallLimit},
			Site:    &task.Site{Parallel: 2, Now: time.Now, Output: task.Output{Mask: task.NewMasker()}},
		}
		r.Recorder = engine.NewRecorder(engine.Options{Progress: func(e task.Event) {
			if e.Task != "" && e.State != task.Started {
				states = append(states, e.Task+"@"+e.Host+" "+string(e.State))
			}
		}})
		j := &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: io.Discard}
		for _, name := range []string{"node1", "node2"} {
			t := &task.Host{Site: r.Site}
			t.Name = name
			t.Conn = &engine.Journaled{
				Watch: r.Watch(name), Journal: j,
				Host: playedHost(func(ctx context.Context, cmd host.Cmd) error {
					if name == "node1" && cmd.Args[0] == "hangs" {
						return hang(ctx, cmd)
					}
					return nil
				}),
			}
			r.Hosts = append(r.Hosts, t)
		}
		do := func(program string) task.Task {
			return task.Task{Name: program, Do: func(ctx context.Context,
				t *task.Host,
			) error {
				return t.Run(ctx, program, "--password", "123456")
			}}
		}
		err := r.Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{do("hangs"), do("works")}}})
		var failed *engine.TaskError
		var stalled *engine.StalledError
		if !errors.As(err, &failed) || failed.Host != "node1" || !errors.As(err, &stalled) ||
			stalled.Limit != engine.StallLimit {
			t.Errorf("got %v", err)
		}
		want := []string{
			"hangs@node2 done", "hangs@node1 waiting", "hangs@node1 waiting", "hangs@node1 waiting",
			"hangs@node1 failed", "works@node2 done",
		}
		if diff := cmp.Diff(states, want); diff != "" {
			t.Errorf("events (-got +want):\n%s", diff)
		}
	})
}

// TestWatchedInputIsClosed: who writes to a command that does not read any more learns of it, through the watch, too.
func TestWatchedInputIsClosed(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	gone := errors.New("gone")
	played := playedHost(func(_ context.Context, cmd host.Cmd) error {
		return cmd.Stdin.(host.ClosableReader).CloseWithError(gone)
	})
	if err := (engine.Watch{Limit: engine.StallLimit}).Run(t.Context(), played,
		host.Cmd{Args: []string{"true"}, Stdin: r}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}
