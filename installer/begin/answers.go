package begin

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/settingcheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// answers asks the bundle's programs of Kubernetes whether they take the settings of the cluster file, for each release
// on the way of an upgrade. build has asked them about the settings of its own cluster file; the operator's file and
// --set can have others. It returns nil if there is nothing to ask.
func answers(ctx context.Context, r *engine.Run) *precheck.ProgramAnswers {
	if r.Bundle == nil || !r.Options.Selection.AsksPrograms() {
		return nil
	}
	var all *precheck.ProgramAnswers
	for _, c := range append(r.Between[:len(r.Between):len(r.Between)], r.Cluster) {
		if len(settingcheck.Programs(c)) == 0 {
			continue
		}
		if all == nil {
			all = &precheck.ProgramAnswers{}
		}
		answer := settingcheck.Ask(ctx, c, bundled{r.Bundle})
		for _, err := range answer.Refused {
			all.Refused = append(all.Refused, err.Error())
		}
		for _, err := range answer.Unasked {
			all.Unasked = append(all.Unasked, err.Error())
		}
	}
	return all
}

// bundled are the contents of a bundle.
type bundled struct{ *bundle.Reader }

// Find implements settingcheck.Contents.
func (b bundled) Find(ctx context.Context, c *manifest.Cluster, need manifest.Need,
	platform scalar.Platform,
) (digest.Digest, error) {
	ref, err := catalog.Ref(c, need, platform)
	if err != nil {
		return "", err
	}
	item, err := task.FindItem(b.Reader, c, need, ref, platform)
	if err != nil || need.Kind == manifest.ItemImage {
		return item.Descriptor.Digest, err
	}
	content, err := b.ContentOf(ctx, item)
	return content.Digest, err
}

// Open implements settingcheck.Contents.
func (b bundled) Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	return b.Blob(ctx, d, 0)
}
