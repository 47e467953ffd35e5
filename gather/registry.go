package gather

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// Registry returns the tags in a registry that match one of the patterns, or all without any: those of the repository
// at, HOST/REPOSITORY, and of the repositories below it, or of all where at is a HOST. Repositories of Helm charts
// become charts. See fetch.Repositories for registries that list no repositories.
func Registry(ctx context.Context, at string, patterns []string, o fetch.Options) (Result, error) {
	keep, err := matcher(patterns)
	if err != nil {
		return Result{}, err
	}
	repositories, err := fetch.Repositories(ctx, at, o)
	if err != nil {
		return Result{}, err
	}
	return tags(ctx, at, repositories, keep, o)
}

// Harbor returns the tags in a project of Harbor, HOST/PROJECT. Its API is asked for the repositories by the client,
// since Harbor's registry lists them for administrators only.
func Harbor(ctx context.Context, client *harbor.Client, at string, patterns []string, o fetch.Options) (Result, error) {
	keep, err := matcher(patterns)
	if err != nil {
		return Result{}, err
	}
	host, project, _ := strings.Cut(at, "/")
	if project == "" || strings.Contains(project, "/") {
		return Result{}, fmt.Errorf("%q: want HOST/PROJECT", at)
	}
	names, err := client.Repositories(ctx, project)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w; kkbundle login %s as an account that may list its repositories, or --from-registry for another registry",
			at, err, host)
	}
	for i, n := range names {
		names[i] = host + "/" + n
	}
	return tags(ctx, at, names, keep, o)
}

func tags(ctx context.Context, at string, repositories []string, keep func(repository, tag string) bool,
	o fetch.Options,
) (Result, error) {
	found, err := fetch.Tags(ctx, repositories, keep, o)
	if err != nil {
		return Result{}, err
	}
	if len(found) == 0 {
		return Result{}, fmt.Errorf("%s: no tag was found in its repositories (%d); --match chooses among them", at,
			len(repositories))
	}
	var r Result
	for _, tag := range found {
		if !tag.Chart {
			r.Bundle.Images = append(r.Bundle.Images, manifest.Image{Name: tag.Repository + ":" + tag.Tag})
			continue
		}
		r.Bundle.Charts = append(r.Bundle.Charts, manifest.Chart{
			Repo: "oci://" + path.Dir(tag.Repository), Name: path.Base(tag.Repository),
			Version: strings.ReplaceAll(tag.Tag, "_", "+"), // no tag has a + (https://helm.sh/docs/topics/registries)
		})
	}
	r.tidy()
	return r, nil
}
