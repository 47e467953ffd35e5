package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/discover/kustomize"
	"github.com/kkbundle/kkbundle/manifest"
)

// A template can loop or allocate without an end, and nothing stops it from within a process. So charts are rendered, and
// YAML is parsed, by a child process that gets its work on standard input, has no environment and no network, and is
// killed when its time is over. It ends itself when it has too much memory, or when its parent is gone.
const (
	findCommand = "find-images"

	maxRendered = 64 << 20 // bytes that a chart renders to, or of all files; the largest charts have a few MiB
	maxAnswer   = 64 << 20 // bytes
	maxMemory   = 1 << 30  // bytes of the child
	maxProblem  = 300      // bytes that are kept of each end of a message
	maxStack    = 64 << 20 // bytes of a goroutine; Helm's includes nest 1,000 deep at most
	memoryTick  = 10 * time.Millisecond

	exitMemory = 3 // exit codes between parent and child; no user sees them
	exitOrphan = 4
)

// findRequest is one child's work: a chart, whose archive follows, or files, or a kustomization.
type findRequest struct {
	// Source begins the places of what is found.
	Source    string
	Rules     []manifest.ImageRule
	Chart     *chartRequest       `json:",omitempty"`
	YAML      []charts.ValuesFile `json:",omitempty"`
	Kustomize *kustomizeRequest   `json:",omitempty"`
}

type chartRequest struct {
	Options charts.RenderOptions
	Values  []charts.ValuesFile
	Size    int64 // bytes of the archive
}

type kustomizeRequest struct{ Root, Dir string }

// findAnswer is what the child prints.
type findAnswer struct {
	discover.Result
	Problems []string
	Files    []string // that a kustomization was made from
}

// A findJob is a request with the chart's archive, which is in the cache.
type findJob struct {
	request findRequest
	archive digest.Digest
}

// ask has a child do a job. What the child cannot do is a *findError.
func (f *finder) ask(ctx context.Context, job findJob) (a findAnswer, err error) {
	var archive io.Reader = http.NoBody
	if c := job.request.Chart; c != nil {
		size, _, err := f.cache.Stat(ctx, job.archive)
		if err != nil {
			return a, err
		}
		rc, err := f.cache.Open(ctx, job.archive)
		if err != nil {
			return a, err
		}
		defer func() { err = errors.Join(err, rc.Close()) }()
		c.Size, archive = size, rc
	}
	exe, err := os.Executable()
	if err != nil {
		return a, err
	}
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, exe, findCommand)
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{"GOTRACEBACK=none"}
	cmd.WaitDelay = time.Second
	stderr := &headBuffer{}
	cmd.Stderr = stderr
	answer, sent, err := converse(cmd, job.request, archive)
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case limited.Err() != nil:
		return a, job.problem("it did not end within %s; a template loops, or --render-timeout has to be longer", f.timeout)
	case sent != nil: // what the child says of it would mislead
		return a, sent
	case err != nil:
		return a, job.problem("%s", explainExit(err, stderr.String()))
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return a, job.problem("its answer cannot be read: %v", err)
	}
	return a, nil
}

func (j findJob) problem(format string, args ...any) error {
	name := j.request.Source
	if name == "" {
		name = "manifests"
	}
	return &findError{[]string{name + ": " + fmt.Sprintf(format, args...)}}
}

// converse runs the child. Its standard input stays open until it has ended: the child takes the end of it for ours.
func converse(cmd *exec.Cmd, request findRequest, archive io.Reader) (answer []byte, sent, err error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	result := make(chan error, 1)
	go func() {
		from := &readError{r: archive}
		if json.NewEncoder(stdin).Encode(request) == nil { // a child that ends early says why itself
			_, _ = io.Copy(stdin, from)
		}
		if from.err != nil {
			_ = stdin.Close() // so that the child does not wait for the rest
		}
		result <- from.err
	}()
	answer, err = io.ReadAll(io.LimitReader(stdout, maxAnswer+1))
	if len(answer) > maxAnswer {
		err = errors.Join(fmt.Errorf("it found more than %d bytes of references", maxAnswer), cmd.Process.Kill())
	}
	ended := cmd.Wait()
	if errors.Is(ended, exec.ErrWaitDelay) { // it ended well, and this machine was too busy to hear the end of what it complained about
		ended = nil
	}
	return answer, <-result, errors.Join(err, ended)
}

// readError remembers why reading ended.
type readError struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (r *readError) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// headBuffer keeps the beginning of what is written to it.
type headBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *headBuffer) Write(p []byte) (int, error) {
	if room := 4096 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// explainExit says why a child ended without an answer.
func explainExit(err error, stderr string) string {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitMemory, strings.Contains(stderr, "out of memory"), strings.Contains(stderr, "cannot allocate memory"):
		return fmt.Sprintf("it takes more than %s of memory; a template repeats without an end", size(maxMemory))
	case strings.Contains(stderr, "stack overflow"), strings.Contains(stderr, "stack exceeds"):
		return "its templates call one another without an end"
	}
	first, _, _ := strings.Cut(strings.TrimSpace(stderr), "\n")
	return strings.TrimSpace(fmt.Sprintf("the process that looks into it ended: %v %s", err, first))
}

func newFindCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:    findCommand,
		Short:  "Look for images in a chart or in YAML, for another kkbundle",
		Hidden: true,
		Args:   takes(),
		RunE: func(*cobra.Command, []string) error {
			confine()
			in := bufio.NewReader(g.In)
			line, err := in.ReadBytes('\n')
			if err != nil {
				return err
			}
			var request findRequest
			if err := json.Unmarshal(line, &request); err != nil {
				return err
			}
			var archive []byte
			if request.Chart != nil {
				archive = make([]byte, min(request.Chart.Size, maxRendered))
				if _, err := io.ReadFull(in, archive); err != nil {
					return err
				}
			}
			go func() {
				_, _ = io.Copy(io.Discard, in) // ends when the parent does
				os.Exit(exitOrphan)
			}()
			return json.NewEncoder(g.Out).Encode(request.answer(archive))
		},
	}
}

// confine bounds this process's memory, and takes away its network as far as libraries would use it.
func confine() {
	log.SetOutput(io.Discard) // Helm logs there
	http.DefaultTransport = noNetwork{}
	debug.SetMaxStack(maxStack)
	debug.SetMemoryLimit(maxMemory / 4 * 3) // collect harder before giving up
	go func() {
		samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		for range time.Tick(memoryTick) {
			metrics.Read(samples)
			if samples[0].Value.Uint64()-samples[1].Value.Uint64() > maxMemory {
				os.Exit(exitMemory)
			}
		}
	}()
}

// noNetwork refuses every request.
type noNetwork struct{}

// RoundTrip implements http.RoundTripper.
func (noNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s is not fetched: put a copy below the manifest's directory and name that", r.URL.Redacted())
}

// answer does the work.
func (r findRequest) answer(archive []byte) findAnswer {
	var a findAnswer
	f, err := discover.NewFinder(r.Rules)
	switch {
	case err != nil:
		a.Problems = append(a.Problems, strings.Split(err.Error(), "\n")...)
	case r.Chart != nil:
		a.chart(f, r, archive)
	case r.Kustomize != nil:
		a.kustomize(f, r)
	default:
		for _, file := range r.YAML {
			a.yaml(f, file.Data, discover.Place{File: file.Name})
		}
	}
	a.Result = discover.Merge(a.Result)
	return a
}

func (a *findAnswer) problem(source string, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if len(line) > 2*maxProblem { // Helm names every template on the way, and there may be a thousand
			line = strings.ToValidUTF8(line[:maxProblem]+" … "+line[len(line)-maxProblem:], "")
		}
		if source != "" && !strings.HasPrefix(line, source) {
			line = source + ": " + line
		}
		a.Problems = append(a.Problems, line)
	}
}

func (a *findAnswer) yaml(f *discover.Finder, text []byte, in discover.Place) {
	found, err := f.YAML(text, in)
	a.Images, a.Doubts = append(a.Images, found.Images...), append(a.Doubts, found.Doubts...)
	if err != nil {
		a.problem("", err)
	}
}

func (a *findAnswer) chart(f *discover.Finder, r findRequest, archive []byte) {
	o := r.Chart.Options
	values, err := charts.ReadValues(r.Chart.Values...)
	if err != nil {
		a.problem(r.Source, err)
		return
	}
	o.Values = charts.MergeValues(o.Values, values) // the user's go over those that install makes itself
	rendering, err := charts.Render(bytes.NewReader(archive), o)
	if err != nil {
		a.problem(r.Source, err)
		return
	}
	for _, file := range rendering.Files {
		a.yaml(f, []byte(file.Content), discover.Place{Source: r.Source, File: file.Name})
	}
	for _, file := range rendering.Annotations {
		found := f.Annotation(file.Content, discover.Place{Source: r.Source, File: file.Name})
		a.Images, a.Doubts = append(a.Images, found.Images...), append(a.Doubts, found.Doubts...)
	}
	for _, kind := range rendering.Lookups {
		if d, ok := discover.Lookup(kind); ok {
			d.Source = r.Source
			a.Doubts = append(a.Doubts, d)
		}
	}
}

func (a *findAnswer) kustomize(f *discover.Finder, r findRequest) {
	root, err := os.OpenRoot(r.Kustomize.Root)
	if err != nil {
		a.problem(r.Source, err)
		return
	}
	defer root.Close()
	text, files, err := kustomize.Build(root, r.Kustomize.Dir)
	if err != nil {
		a.problem(r.Source, err)
		return
	}
	a.Files = files
	a.yaml(f, text, discover.Place{Source: r.Source})
}
