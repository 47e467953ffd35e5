package fetch

import (
	"context"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// A FirstUse lists the files that Resolve downloads because nobody has published their digests.
type FirstUse struct {
	Sizes   []int64 // bytes still to be downloaded: the servers' sizes without the parts in the store
	Unknown int     // further files, whose servers say no size
}

// A platformFile is a file of a manifest for one platform, "" if it is the same for all.
type platformFile struct {
	manifest.File
	platform string
	err      error // of the file's platforms
}

// platformFiles returns the files of a manifest, by platform.
func (s *session) platformFiles(b *manifest.Bundle) (list []platformFile) {
	for _, f := range b.Files {
		platforms, err := platformsOr(f.Platforms, s.images.platforms)
		if err != nil || !f.PerPlatform() {
			platforms = []string{""}
		}
		for _, p := range platforms {
			list = append(list, platformFile{f, p, err})
		}
	}
	return list
}

// announceFirstUse tells Options.FirstUse the sizes of files without a published digest, before they are downloaded.
func (s *session) announceFirstUse(ctx context.Context, b *manifest.Bundle) error {
	if s.firstUse == nil {
		return nil
	}
	var list []*upstream.Download
	seen := map[string]bool{}
	for _, f := range s.platformFiles(b) {
		if f.err != nil || seen[manifest.FileURL(f.File, f.platform)] {
			continue
		}
		seen[manifest.FileURL(f.File, f.platform)] = true
		if d := s.files.unpublished(ctx, f); d != nil {
			list = append(list, d)
		}
	}
	sizes, errs := make([]int64, len(list)), make([]error, len(list))
	s.each(len(list), func(i int) { sizes[i], errs[i] = list[i].Left(ctx) })
	var found FirstUse
	for i, size := range sizes {
		switch {
		case errs[i] != nil: // resolving the file reports it
		case size == upstream.UnknownSize:
			found.Unknown++
		default:
			found.Sizes = append(found.Sizes, size)
		}
	}
	if ctx.Err() != nil || len(found.Sizes)+found.Unknown == 0 {
		return context.Cause(ctx)
	}
	return s.firstUse(found)
}

// unpublished returns the download of a file that has to be fetched before its digest is known. It returns nil for
// other files, and for those that a directory has, or that were downloaded before and are probably unchanged.
func (f *files) unpublished(ctx context.Context, file platformFile) *upstream.Download {
	pin, known, err := f.described(file.File, file.platform)
	if _, local := file.LocalPath(file.platform); local || err != nil || known != "" || file.Checksums != "" {
		return nil
	}
	if _, kept := f.kept.file(pin, f.web); kept {
		return nil
	}
	d, err := f.web.urlDownload(pin.Ref, "", -1)
	if err != nil || f.web.loader.Dirs.Have(d) {
		return nil
	}
	if d.Remembered(ctx) {
		return nil
	}
	return d
}
