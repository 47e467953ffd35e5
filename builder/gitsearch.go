package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/refname"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Bounds of the YAML of a repository.
const (
	maxGitFiles = 10_000
	maxGitFile  = 4 << 20 // bytes; larger files are not searched
)

// searched returns the repositories of the manifest whose YAML is searched for images.
func (p *Project) searched() (list []manifest.GitRepository) {
	for _, r := range p.Manifest.Git {
		if !r.ImagesListed {
			list = append(list, r)
		}
	}
	return list
}

// bringRepositories brings the repositories that are searched into the cache, and returns their pins.
func (s *session) bringRepositories(ctx context.Context) ([]manifest.Pin, error) {
	b := *s.Manifest
	b.Git = s.searched()
	return s.bring(ctx, &b)
}

// bring brings the repositories of a manifest into the cache. The error is as that of fetch.GitRepositories.
func (s *session) bring(ctx context.Context, b *manifest.Bundle) ([]manifest.Pin, error) {
	if len(b.Git) == 0 {
		return nil, nil
	}
	m := s.begin(PhaseResolve)
	defer m.end()
	o := s.fetchOptions(m)
	o.Keep = s.keep
	return fetch.GitRepositories(ctx, b, o)
}

// butItems returns an error, nil for one of items, which pinning them reports.
func butItems(ctx context.Context, err error) error {
	if _, failed := errors.AsType[*fetch.Errors](err); failed && ctx.Err() == nil && len(cache.EntryErrors(err)) == 0 {
		return nil
	}
	return err
}

// keeping returns a lock that has further pins, too: repositories that this run has looked up already.
func keeping(l *manifest.Lock, pins []manifest.Pin) *manifest.Lock {
	if len(pins) == 0 {
		return l
	}
	var all manifest.Lock
	if l != nil {
		all = *l
	}
	all.Items = slices.Concat(all.Items, pins)
	return &all
}

// repositoriesIn returns the pins of a lock that are searched.
func (p *Project) repositoriesIn(l *manifest.Lock) (pins []manifest.Pin) {
	for _, r := range p.searched() {
		for _, pin := range l.Items {
			if pin.Kind == manifest.ItemGit && pin.Ref == r.Ref() {
				pins = append(pins, pin)
			}
		}
	}
	return pins
}

// gitJobs returns a job for the YAML of each repository.
func (f *finder) gitJobs(ctx context.Context) (jobs []findJob, problems []string, err error) {
	for _, r := range f.searched() {
		i := slices.IndexFunc(f.repositories, func(pin manifest.Pin) bool { return pin.Ref == r.Ref() })
		if i < 0 {
			continue // it failed, and is reported
		}
		source := "repository " + r.RepositoryName()
		files, err := f.yamlOf(ctx, f.repositories[i])
		_, ofDisk := errors.AsType[*fs.PathError](err)
		_, full := errors.AsType[roomError](err)
		if ctx.Err() != nil || ofDisk || full || len(cache.EntryErrors(err)) > 0 {
			return nil, nil, fmt.Errorf("%s: %w", source, err)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf(
				"%s: %v: list its images under images, and write imagesListed: true for it", source, err))
			continue
		}
		if len(files) > 0 {
			jobs = append(jobs, findJob{
				member: memberOf(r.Group), request: findRequest{Source: source, YAML: files, Others: true},
			})
		}
	}
	return jobs, problems, nil
}

// yamlOf returns the YAML in the trees of a repository's refs, without charts and hidden directories. The repository is
// in the cache.
func (f *finder) yamlOf(ctx context.Context, pin manifest.Pin) (files []charts.ValuesFile, err error) {
	repository, end, err := f.openRepository(ctx, pin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	total := 0
	walk := git.Walk{
		Enter: func(dir string) bool { return !strings.HasPrefix(path.Base(dir), ".") },
		Takes: func(names []string) bool { return !slices.Contains(names, "Chart.yaml") },
		Wants: func(name string) bool {
			ext := strings.ToLower(path.Ext(name))
			return ext == ".yaml" || ext == ".yml"
		},
	}
	err = repository.EachFile(ctx, walk, func(file git.TreeFile) error {
		data, small, err := repository.ReadFile(file, maxGitFile)
		if err != nil || !small {
			return err
		}
		if total += len(data); total > charts.MaxRendered {
			return fmt.Errorf("it has more than %s of YAML", plain.Size(charts.MaxRendered))
		}
		if len(files) == maxGitFiles {
			return fmt.Errorf("it has more than %d files of YAML", maxGitFiles)
		}
		files = append(files, charts.ValuesFile{Name: shortRef(file.Ref) + ":" + file.Path, Data: data})
		return nil
	})
	return files, err
}

// A roomError means that the cache has no room for unpacking a repository.
type roomError struct{ error }

// roomFor checks that the search has room for a repository, whose pack is unpacked for it.
func (f *finder) roomFor(parts bundle.GitParts) error {
	need := f.cacheNeed()
	need.What = "the search in a Git repository"
	need.Bytes = parts.Pack.Size + parts.Index.Size
	if _, err := disk.CheckSpace(need); err != nil {
		return roomError{err}
	}
	return nil
}

// openRepository opens a repository in the cache. Call end at last.
func (f *finder) openRepository(ctx context.Context, pin manifest.Pin) (
	r *git.Repository, end func() error, err error,
) {
	var m ocispec.Manifest
	data, err := f.cache.ReadBlob(ctx, pin.Digest, bundle.MaxDocument)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return nil, nil, err
	}
	parts, err := bundle.GitPartsOf(m)
	if err != nil {
		return nil, nil, err
	}
	if err := f.roomFor(parts); err != nil {
		return nil, nil, err
	}
	document, err := f.cache.ReadBlob(ctx, parts.Document.Digest, git.MaxDocument)
	if err != nil {
		return nil, nil, err
	}
	var open []*os.File
	end = func() (err error) {
		for _, file := range open {
			err = errors.Join(err, file.Close())
		}
		return err
	}
	for _, d := range []digest.Digest{parts.Pack.Digest, parts.Index.Digest} {
		file, err := f.unpacked(ctx, d)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		open = append(open, file)
	}
	r, err = git.Open(document, open[0], parts.Pack.Size, open[1], parts.Index.Size)
	if err != nil {
		err = errors.Join(err, end())
	}
	return r, end, err
}

// unpacked returns a file without a name that has a blob of the cache.
func (f *finder) unpacked(ctx context.Context, d digest.Digest) (*os.File, error) {
	file, err := os.CreateTemp(f.cacheDir, "kkbundle-git-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	rc, err := f.cache.Open(ctx, d)
	if err == nil {
		_, err = io.Copy(file, rc)
		err = errors.Join(err, rc.Close())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// shortRef returns a ref as people write it.
func shortRef(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, refname.Branches), refname.Tags)
}
