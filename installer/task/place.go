package task

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Component returns the bundle's item for a need. The platform selects among files.
func (s *Site) Component(need manifest.Need, platform string) (bundle.Item, error) {
	ref, err := catalog.Ref(s.Cluster, need, platform)
	if err != nil {
		return bundle.Item{}, err
	}
	return s.find(need, ref, platform)
}

func (s *Site) find(need manifest.Need, ref, platform string) (bundle.Item, error) {
	return FindItem(s.Bundle, s.Cluster, need, ref, platform)
}

// FindItem returns the bundle's item for a cluster's need and its reference, or else the file that bundles of earlier
// releases have in its place. The error is a MissingError if the bundle has neither.
func FindItem(b *bundle.Reader, c *manifest.Cluster, need manifest.Need, ref, platform string) (bundle.Item, error) {
	if item, ok := b.Find(need.Kind, ref, platform); ok {
		return item, nil
	}
	former, err := catalog.FormerRef(c, need, platform)
	if err != nil {
		return bundle.Item{}, err
	}
	if item, ok := b.Find(need.Kind, former, platform); ok && former != "" {
		return item, nil
	}
	return bundle.Item{}, &MissingError{Kind: need.Kind, Name: need.Name, Ref: ref, Platform: platform}
}

// Components returns all items of the bundle for a need. The error joins a MissingError per missing item.
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

// A MissingError means that the bundle lacks an item that the cluster needs.
type MissingError struct {
	Kind, Name, Ref string
	Platform        string // of the hosts; "" for an item without a platform
}

// Error names the item and the platform.
func (e *MissingError) Error() string {
	text := fmt.Sprintf("the bundle lacks the %s %s (%s)", e.Kind, e.Name, e.Ref)
	if e.Platform != "" {
		text += " for " + e.Platform
	}
	return text
}

// Hint returns the remedy.
func (e *MissingError) Hint() string {
	return "build the bundle again with this cluster file (cluster: in the manifest) and the platforms of all hosts, or give install the cluster file that it was built with"
}

// FilePlan returns the files of the bundle to send to a host and their paths. Members of one archive share a file.
func (s *Site) FilePlan(ctx context.Context, t *Host, places []Place) (transfer.Plan, error) {
	var plan transfer.Plan
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
		if last := len(plan.Files) - 1; p.Member != "" && last >= 0 &&
			plan.Files[last].Digest == content.Digest.String() {
			plan.Files[last].Unpack = append(plan.Files[last].Unpack,
				transfer.Member{Name: p.Member, Path: p.Path, Mode: p.Mode})
			continue
		}
		f := transfer.PlannedFile{Name: p.Component, Digest: content.Digest.String(), Size: content.Size}
		if s.pullsFiles(t) {
			if f.Repository, err = s.Files.Repository(item); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if p.Member == "" {
			f.Path, f.Mode = p.Path, p.Mode
		} else {
			f.Unpack = []transfer.Member{{Name: p.Member, Path: p.Path, Mode: p.Mode}}
		}
		plan.Files = append(plan.Files, f)
	}
	return plan, errors.Join(errs...)
}

// NoteOpened records in install.log that an item of the bundle is read. Tests compare the items read with the needs
// of tasks.
func (s *Site) NoteOpened(ctx context.Context, who, item string) {
	s.Note(ctx, who, "opened in the bundle: "+item)
}

// IsDone reports whether a task has nothing to do on a host.
func (s *Site) IsDone(ctx context.Context, task Task, t *Host) (bool, error) {
	lacks, err := s.lacks(ctx, t, task.Files)
	if err != nil {
		return false, err
	}
	if len(lacks) > 0 {
		Because(ctx, "%s is missing or different", s.ItemOf(digest.Digest(lacks[0].Digest)))
		return false, nil
	}
	return task.Done(ctx, t)
}

// toSend returns the size of those files of a task that a host has neither in their places nor kept, in bytes.
func (s *Site) toSend(ctx context.Context, task Task, t *Host) (bytes int64, err error) {
	lacks, err := s.lacks(ctx, t, task.Files)
	for _, l := range lacks {
		bytes += l.Rest
	}
	return bytes, err
}

// Ahead returns the task that sends a task's files to its hosts and puts none into its place: the task itself then
// finds them there.
func (t Task) Ahead() Task {
	return Task{
		Name: t.Name, Roles: t.Roles, Independent: true,
		Done: func(ctx context.Context, h *Host) (bool, error) {
			rest, err := h.Site.toSend(ctx, t, h)
			if rest > 0 {
				Because(ctx, "%s of its files are not there", plain.Size(rest))
			}
			return rest == 0, err
		},
		Do: func(ctx context.Context, h *Host) error {
			e := Event{Phase: "stage", Task: t.Name, Host: h.Name}
			return h.Site.supply(ctx, h, t.Files, e, transfer.Keep)
		},
	}
}

// lacks returns the files that are not in their places on a host with the bundle's content.
func (s *Site) lacks(ctx context.Context, t *Host, places []Place) (list []transfer.Lack, err error) {
	err = s.receive(ctx, t, places, func(rw io.ReadWriter, plan transfer.Plan) (err error) {
		list, err = transfer.Look(rw, rw, plan)
		return err
	})
	return list, err
}

// Place brings the files of the bundle that a host lacks into their places.
func (s *Site) Place(ctx context.Context, t *Host, places []Place, e Event) error {
	return s.supply(ctx, t, places, e, transfer.Send)
}

// supply has a host take files from the site's registry, if the cluster file says so, and sends the others.
func (s *Site) supply(ctx context.Context, t *Host, places []Place, e Event,
	send func(context.Context, io.Writer, io.Reader, transfer.Plan, transfer.Source) (transfer.Summary, error),
) error {
	return s.receive(ctx, t, places, func(rw io.ReadWriter, plan transfer.Plan) (err error) {
		if s.pullsFiles(t) {
			if plan.Registries, err = s.Files.registries(t); err != nil {
				return err
			}
		}
		pulls := pulls{site: s, host: t, event: e, begun: map[string]bool{}}
		_, err = send(ctx, rw, rw, plan, transfer.Source{
			Open: s.opener(t, e), Pulled: func(p transfer.Pull) { pulls.hear(ctx, p) },
		})
		t.cutOff = t.cutOff || pulls.vain && len(pulls.begun) == 0
		return err
	})
}

// opener returns what opens the bundle's content for a host, and reports how much of it was read.
func (s *Site) opener(t *Host, e Event) transfer.Opener {
	return func(ctx context.Context, d string, offset int64) (io.ReadCloser, error) {
		s.NoteOpened(ctx, t.Name, s.ItemOf(digest.Digest(d)))
		size, _ := s.Bundle.Stat(digest.Digest(d))
		blob, err := s.Bundle.Blob(ctx, digest.Digest(d), offset)
		if err != nil {
			return nil, err
		}
		e.Total += size - offset
		return &MeteredReader{ReadCloser: blob, Site: s, Event: &e}, nil
	}
}

// receive has a host's helper receive files.
func (s *Site) receive(ctx context.Context, t *Host, places []Place,
	with func(rw io.ReadWriter, plan transfer.Plan) error,
) (err error) {
	if len(places) == 0 {
		return nil
	}
	plan, err := s.FilePlan(ctx, t, places)
	if err != nil {
		return err
	}
	receiver := t.Helper(ctx, "receive")
	defer func() {
		if closeErr := receiver.Close(); err == nil { // the first error says more
			err = closeErr
		}
	}()
	return with(receiver, plan)
}

// A MeteredReader reports the bytes read as Progress events.
type MeteredReader struct {
	io.ReadCloser
	Site  *Site
	Event *Event
	last  int64
}

// Read reads and reports.
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

// bundled returns the digests of the files to place on a host.
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

// MaxManifest limits the size of an image manifest.
const MaxManifest = 4 << 20
