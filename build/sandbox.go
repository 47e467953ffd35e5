package build

import (
	"bufio"
	"bytes"
	"cmp"
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

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/discover/kustomize"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// FinderCommand is the argument with which this program starts itself as a sandbox. Main of a program that uses this package calls
// RunFinder if it is the first argument.
//
// A template can loop or allocate without an end, and nothing within a process can stop it. So charts are rendered, and YAML is
// parsed, by a child process that gets its work on standard input and has no environment and no network. It is killed when its
// time is over. It exits when it uses too much memory, or when its parent is gone. On Linux the kernel holds it, too: an empty network
// namespace, resource limits, Landlock (it reads nothing but a kustomization's directory, and writes nothing) and seccomp (no sockets,
// no other programs), as far as the kernel has them. A note of the build names missing ones.
const FinderCommand = "find-images"

const (
	maxRendered = 64 << 20 // bytes of a rendered chart, or of all files; the largest charts have a few MiB
	maxAnswer   = 64 << 20 // bytes
	maxMemory   = 1 << 30  // bytes of the child
	maxProblem  = 300      // bytes that are kept of each end of a message
	maxStack    = 64 << 20 // bytes of a goroutine; Helm's includes nest 1,000 deep at most
	maxFiles    = 64       // open files of the child
	memoryTick  = 10 * time.Millisecond

	barrierLandlock, barrierSeccomp = "Landlock", "seccomp"

	exitMemory = 3 // exit codes of the child; no user sees them
	exitOrphan = 4
)

// findRequest is the work of one child: a chart, whose archive follows, or files, or a kustomization, or kubeadm.
type findRequest struct {
	// Source is the first part of the places of images.
	Source    string
	Rules     []manifest.ImageRule
	Chart     *chartRequest       `json:",omitempty"`
	YAML      []charts.ValuesFile `json:",omitempty"`
	Kustomize *kustomizeRequest   `json:",omitempty"`
	Kubeadm   *kubeadmRequest     `json:",omitempty"`
}

type chartRequest struct {
	Options charts.RenderOptions
	Values  []charts.ValuesFile
	Size    int64 // bytes of the archive
}

type kustomizeRequest struct{ Root, Dir string }

// findAnswer is the output of the child.
type findAnswer struct {
	discover.Result
	Problems []string
	Files    []string // files of a kustomization
	Missing  []string // barriers that the child's kernel lacks
}

// A findJob is a request with the chart's archive, which is in the cache.
type findJob struct {
	request findRequest
	archive digest.Digest
}

// ask has a child do a job. The error is a *FindError if the child failed.
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
	limited, cancel := context.WithTimeout(ctx, f.RenderTimeout)
	defer cancel()
	d := delegate(limited, job.request, archive)
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case limited.Err() != nil:
		return a, job.problem("rendering took longer than %s: a template loops, or --render-timeout has to be longer", f.RenderTimeout)
	case d.sent != nil: // the error of the child would mislead
		return a, d.sent
	case d.failed != nil:
		return a, job.problem("%s", explainExit(d.failed, d.stderr))
	}
	if err := json.Unmarshal(d.answer, &a); err != nil {
		return a, job.problem("unreadable answer of the finder process: %v", err)
	}
	return a, nil
}

// A delegation is the result of a child process.
type delegation struct {
	answer       []byte
	sent, failed error // of sending the request's archive; of the child
	stderr       string
}

// delegate has a child process answer a request.
func delegate(ctx context.Context, request findRequest, archive io.Reader) delegation {
	exe, err := os.Executable()
	if err != nil {
		return delegation{failed: err}
	}
	stderr := &capped.Head{Most: 4096}
	cmd := childProcess(ctx, exe, stderr)
	separateNetwork(cmd)
	var d delegation
	d.answer, d.sent, d.failed = converse(cmd, request, archive)
	if cmd.Process == nil && ctx.Err() == nil { // this system refuses namespaces
		d.answer, d.sent, d.failed = converse(childProcess(ctx, exe, stderr), request, archive)
	}
	d.stderr = string(stderr.Bytes())
	return d
}

// childProcess returns this program as a child without an environment.
func childProcess(ctx context.Context, exe string, stderr io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, exe, FinderCommand)
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{"GOTRACEBACK=none"}
	cmd.WaitDelay = time.Second
	cmd.Stderr = stderr
	return cmd
}

func (j findJob) problem(format string, args ...any) error {
	name := j.request.Source
	name = cmp.Or(name, "manifests")
	return &FindError{[]string{name + ": " + fmt.Sprintf(format, args...)}}
}

// converse runs the child. Its standard input stays open until it has ended: for the child, the end of it is the end of the parent.
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
		from := &errorReader{r: archive}
		if json.NewEncoder(stdin).Encode(request) == nil { // a child that ends early reports why itself
			_, _ = io.Copy(stdin, from)
		}
		if from.err != nil {
			_ = stdin.Close() // so that the child does not wait for the rest
		}
		result <- from.err
	}()
	answer, err = io.ReadAll(io.LimitReader(stdout, maxAnswer+1))
	if len(answer) > maxAnswer {
		err = errors.Join(fmt.Errorf("answer exceeds %d bytes", maxAnswer), cmd.Process.Kill())
	}
	ended := cmd.Wait()
	if errors.Is(ended, exec.ErrWaitDelay) { // it succeeded, and this machine was too busy to read the end of its standard error
		ended = nil
	}
	return answer, <-result, errors.Join(err, ended)
}

// errorReader keeps the error that ended reading.
type errorReader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// explainExit describes why a child ended without an answer.
func explainExit(err error, stderr string) string {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitMemory, strings.Contains(stderr, "out of memory"), strings.Contains(stderr, "cannot allocate memory"),
		strings.Contains(stderr, "pthread_create failed"): // no memory for the stack of a thread
		return fmt.Sprintf("rendering takes more than %s of memory: a template repeats without an end", plain.Size(maxMemory))
	case strings.Contains(stderr, "stack overflow"), strings.Contains(stderr, "stack exceeds"):
		return "templates include one another without an end"
	}
	first, _, _ := strings.Cut(strings.TrimSpace(stderr), "\n")
	return strings.TrimSpace(fmt.Sprintf("the finder process failed: %v %s", err, first))
}

// RunFinder is the work of the child: it reads a request from r and writes the answer to w. It confines the whole process, so call
// it only where the program was started with FinderCommand.
func RunFinder(r io.Reader, w io.Writer) error {
	confine()
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var request findRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return err
	}
	if request.Kubeadm != nil {
		return request.Kubeadm.become()
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
		os.Exit(exitOrphan)            //nolint:forbidigo // this process is the sandbox
	}()
	readable := ""
	if request.Kustomize != nil {
		readable = request.Kustomize.Root
	}
	missing := isolate(readable)
	answer := request.answer(archive)
	answer.Missing = missing
	return json.NewEncoder(w).Encode(answer)
}

// confine limits the memory of this process and disables the HTTP client of libraries.
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
				os.Exit(exitMemory) //nolint:forbidigo // this process is the sandbox
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

// answer searches what the request names.
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
		if len(line) > 2*maxProblem { // Helm names every template of the call chain, up to a thousand
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
	o.Values = charts.MergeValues(o.Values, values) // values of the user win
	rendering, err := charts.Render(bytes.NewReader(archive), o)
	var version *charts.KubeVersionError
	if errors.As(err, &version) {
		err = fmt.Errorf("%w; write the site's version in the manifest or the cluster file, kubernetes: {version: v1.N.P}, or take another version of the chart", err)
	}
	if err != nil {
		a.problem(r.Source, err)
		return
	}
	a.rendered(f, r, rendering)
	for _, file := range rendering.Annotations {
		found := f.Annotation(file.Content, discover.Place{Source: r.Source, File: file.Name})
		a.Images, a.Doubts = append(a.Images, found.Images...), append(a.Doubts, found.Doubts...)
	}
	for _, file := range rendering.Listed {
		a.Doubts = append(a.Doubts, f.Listed(file.Content, discover.Place{Source: r.Source, File: file.Name})...)
	}
	for _, kind := range rendering.Lookups {
		if d, ok := discover.Lookup(kind); ok {
			d.Source = r.Source
			a.Doubts = append(a.Doubts, d)
		}
	}
}

// rendered searches the files of a chart, for an installation and for an upgrade, and names what only one of them has.
func (a *findAnswer) rendered(f *discover.Finder, r findRequest, rendering *charts.Rendering) {
	differs := map[string]bool{}
	for _, file := range rendering.Upgrade {
		differs[file.Name] = true
	}
	var install, upgrade findAnswer
	for _, file := range rendering.Files {
		in := a
		if differs[file.Name] {
			in = &install
		}
		in.yaml(f, []byte(file.Content), discover.Place{Source: r.Source, File: file.Name})
	}
	for _, file := range rendering.Upgrade {
		upgrade.yaml(f, []byte(file.Content), discover.Place{Source: r.Source, File: file.Name})
	}
	failed := rendering.NoUpgrade
	if len(install.Problems) == 0 && len(upgrade.Problems) > 0 {
		failed = upgrade.Problems[0]
	}
	if failed != "" {
		a.Doubts = append(a.Doubts, discover.NoUpgrade(failed, r.Source))
	}
	a.Problems = append(a.Problems, install.Problems...)
	a.Result = discover.Merge(a.Result, discover.Either(a.Result, install.Result, "only on install", upgrade.Result, "only on upgrade"))
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
