package builder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/charts/sandbox"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/discover/kustomize"
	"github.com/kkbundle/kkbundle/manifest"
)

// finderTask is the name of the task that searches charts and YAML for images.
const finderTask = "find-images"

const maxProblem = 300 // bytes that are kept of each end of a message

// Tasks returns the work that a build gives to sandbox processes. Main of a program that uses this package gives it
// to them: see the documentation of the package.
func Tasks() sandbox.Tasks { return sandbox.Tasks{finderTask: findTask} }

// findTask is the finder's work.
func findTask(w sandbox.Work) (any, error) {
	var request findRequest
	if err := json.Unmarshal(w.Request, &request); err != nil {
		return nil, err
	}
	return request.answer(w.Input), nil
}

// findRequest is the work of one child: a chart, whose archive follows, or files, or a kustomization.
type findRequest struct {
	// Source is the first part of the places of images.
	Source string
	Rules  []manifest.ImageRule
	Chart  *chartRequest       `json:",omitempty"`
	YAML   []charts.ValuesFile `json:",omitempty"`
	// Others means that files of YAML may be anything, and those that cannot be read are left out.
	Others    bool              `json:",omitempty"`
	Kustomize *kustomizeRequest `json:",omitempty"`
}

type chartRequest struct {
	Options charts.RenderOptions
	Values  []charts.ValuesFile
}

type kustomizeRequest struct{ Root, Dir string }

// findAnswer is the output of the child.
type findAnswer struct {
	discover.Result
	Problems []string
	Files    []string // files of a kustomization
	Unread   []string // files that are not YAML of Kubernetes as a whole, and may be anything
}

// A findJob is a request with the chart's archive, which is in the cache.
type findJob struct {
	request findRequest
	archive digest.Digest
	member  *membership // of the images that it finds
}

// ask has a child do a job. The error is a *FindError if the child failed.
func (f *finder) ask(ctx context.Context, job findJob) (a findAnswer, missing []string, err error) {
	work := sandbox.Job{Task: finderTask, Request: job.request}
	if job.request.Chart != nil {
		if work.Size, _, err = f.cache.Stat(ctx, job.archive); err != nil {
			return a, nil, err
		}
		rc, err := f.cache.Open(ctx, job.archive)
		if err != nil {
			return a, nil, err
		}
		defer func() { err = errors.Join(err, rc.Close()) }()
		work.Input = rc
	}
	if k := job.request.Kustomize; k != nil {
		work.Readable = k.Root
	}
	reply, err := work.Do(ctx, f.RenderTimeout)
	failed, child := errors.AsType[*sandbox.FailedError](err)
	switch {
	case errors.Is(err, sandbox.ErrTime):
		return a, nil, job.problem(
			"rendering took longer than %s: a template loops, or --render-timeout has to be longer", f.RenderTimeout)
	case child:
		return a, nil, job.problem("%v", failed)
	case err != nil:
		return a, nil, err
	}
	if err := json.Unmarshal(reply.Answer, &a); err != nil {
		return a, nil, job.problem("unreadable answer of the sandbox process: %v", err)
	}
	return a, reply.Missing, nil
}

func (j findJob) problem(format string, args ...any) error {
	name := j.request.Source
	name = cmp.Or(name, "manifests")
	return &FindError{[]string{name + ": " + fmt.Sprintf(format, args...)}}
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
			place := discover.Place{File: file.Name}
			if !r.Others {
				a.yaml(f, file.Data, place)
				continue
			}
			place.Source = r.Source
			if a.search(f, file.Data, place) != nil {
				a.Unread = append(a.Unread, file.Name)
			}
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

// yaml searches a file, all of which has to be YAML of Kubernetes.
func (a *findAnswer) yaml(f *discover.Finder, text []byte, in discover.Place) {
	if err := a.search(f, text, in); err != nil {
		a.problem("", err)
	}
}

// search searches a file. The error says which of its documents could not be read.
func (a *findAnswer) search(f *discover.Finder, text []byte, in discover.Place) error {
	found, err := f.YAML(text, in)
	a.Images, a.Doubts = append(a.Images, found.Images...), append(a.Doubts, found.Doubts...)
	return err
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
	for _, file := range rendering.Definitions {
		a.yaml(f, []byte(file.Content), discover.Place{Source: r.Source, File: file.Name})
	}
	if rendering.Unfit != "" {
		a.Doubts = append(a.Doubts, discover.Unfit(rendering.Unfit, r.Source))
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
	a.Result = discover.Merge(a.Result, discover.Either(a.Result, install.Result, "only on install", upgrade.Result,
		"only on upgrade"))
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
