package task

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Component finds what a need for one item stands for in the bundle; the platform matters for files.
func (s *Site) Component(need manifest.Need, platform string) (bundle.Item, error) {
	ref, err := catalog.Ref(s.Cluster, need, platform)
	if err != nil {
		return bundle.Item{}, err
	}
	return s.find(need, ref, platform)
}

func (s *Site) find(need manifest.Need, ref, platform string) (bundle.Item, error) {
	item, ok := s.Bundle.Find(need.Kind, ref, platform)
	if !ok {
		return bundle.Item{}, &MissingError{Kind: need.Kind, Name: need.Name, Ref: ref, Platform: platform}
	}
	return item, nil
}

// Components finds all that a need stands for in the bundle, as component does. The error joins what is missing.
func (s *Site) Components(need manifest.Need, platform string) ([]bundle.Item, error) {
	refs, err := catalog.Refs(s.Cluster, need, platform)
	if err != nil {
		return nil, err
	}
	var items []bundle.Item
	var errs []error
	for _, ref := range refs {
		item, err := s.find(need, ref, platform)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		items = append(items, item)
	}
	return items, errors.Join(errs...)
}

// A MissingError says that the bundle lacks something that the cluster needs.
type MissingError struct {
	Kind, Name, Ref string
	// Platform is the hosts' platform; "" where it does not matter.
	Platform string
}

// Error names what is missing.
func (e *MissingError) Error() string {
	text := fmt.Sprintf("the bundle lacks the %s %s (%s)", e.Kind, e.Name, e.Ref)
	if e.Platform != "" {
		text += " for " + e.Platform
	}
	return text
}

// Hint says what to do about it.
func (e *MissingError) Hint() string {
	return "build the bundle again with this cluster file (cluster: in the manifest) and the platforms of all hosts, or give install the cluster file that it was built with"
}

// FilePlan says which content of the bundle goes where on a host. Several members of one archive are one file to send.
func (s *Site) FilePlan(ctx context.Context, t *Host, places []Place) (node.Plan, error) {
	var plan node.Plan
	platform := "linux/" + t.Arch
	var errs []error
	for _, p := range places {
		item, err := s.Component(manifest.Need{Kind: manifest.ItemFile, Name: p.Component}, platform)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		content, err := s.Bundle.ContentOf(ctx, item)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.RecordItem(content.Digest, item)
		if last := len(plan.Files) - 1; p.Member != "" && last >= 0 && plan.Files[last].Digest == content.Digest.String() {
			plan.Files[last].Unpack = append(plan.Files[last].Unpack, node.Member{Name: p.Member, Path: p.Path, Mode: p.Mode})
			continue
		}
		f := node.PlannedFile{Name: p.Component, Digest: content.Digest.String(), Size: content.Size}
		if p.Member == "" {
			f.Path, f.Mode = p.Path, p.Mode
		} else {
			f.Unpack = []node.Member{{Name: p.Member, Path: p.Path, Mode: p.Mode}}
		}
		plan.Files = append(plan.Files, f)
	}
	return plan, errors.Join(errs...)
}

// Opened notes in install.log which item of the bundle is read, so that what an installation used can be compared with
// what the tasks declare.
func (s *Site) NoteOpened(ctx context.Context, who, item string) {
	s.Note(ctx, who, "opened in the bundle: "+item)
}

// errLooking stops a helper that asks for content while we only look.
var errLooking = errors.New("only looking")

// IsDone reports whether a task has nothing to do on a host.
func (s *Site) IsDone(ctx context.Context, task Task, t *Host) (bool, error) {
	if ok, err := s.placed(ctx, t, task.Files); err != nil || !ok {
		return false, err
	}
	return task.Done(ctx, t)
}

// placed tells whether a host has all files, each with the content that the bundle has for it.
func (s *Site) placed(ctx context.Context, t *Host, places []Place) (bool, error) {
	err := s.send(ctx, t, places, func(_ context.Context, d string, _ int64) (io.ReadCloser, error) {
		Because(ctx, "it lacks the %s, or has another", s.ItemOf(digest.Digest(d)))
		return nil, errLooking
	})
	if errors.Is(err, errLooking) {
		return false, nil
	}
	return err == nil, err
}

// Place puts files of the bundle on a host, those that it lacks.
func (s *Site) Place(ctx context.Context, t *Host, places []Place, e Event) error {
	return s.send(ctx, t, places, func(ctx context.Context, d string, offset int64) (io.ReadCloser, error) {
		s.NoteOpened(ctx, t.Name, s.ItemOf(digest.Digest(d)))
		size, _ := s.Bundle.Stat(digest.Digest(d))
		blob, err := s.Bundle.Blob(ctx, digest.Digest(d), offset)
		if err != nil {
			return nil, err
		}
		e.Total += size - offset
		return &MeteredReader{ReadCloser: blob, Site: s, Event: &e}, nil
	})
}

// send offers files to a host and sends what open returns for what it lacks.
func (s *Site) send(ctx context.Context, t *Host, places []Place, open node.Opener) (err error) {
	if len(places) == 0 {
		return nil
	}
	plan, err := s.FilePlan(ctx, t, places)
	if err != nil {
		return err
	}
	receiver := t.Helper(ctx, "receive")
	defer func() {
		if closeErr := receiver.Close(); err == nil { // a failure of the conversation says more than how it ended
			err = closeErr
		}
	}()
	_, err = node.Send(ctx, receiver, receiver, plan, open)
	return err
}

// MeteredReader reports how much was read.
type MeteredReader struct {
	io.ReadCloser
	Site  *Site
	Event *Event
	last  int64
}

func (m *MeteredReader) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.Event.Bytes += int64(n)
	const step = 4 << 20
	if m.Event.Bytes-m.last >= step || errors.Is(err, io.EOF) {
		m.last = m.Event.Bytes
		e := *m.Event
		e.State = Progress
		m.Site.Tell(e)
	}
	return n, err
}

// bundled returns the digests of the content that a task places on a host.
func (s *Site) bundled(ctx context.Context, t *Host, places []Place) ([]string, error) {
	plan, err := s.FilePlan(ctx, t, places)
	if err != nil {
		return nil, err
	}
	var digests []string
	for _, f := range plan.Files {
		digests = append(digests, f.Digest)
	}
	return digests, nil
}

// MaxManifest bounds the manifests of images.
const MaxManifest = 4 << 20
