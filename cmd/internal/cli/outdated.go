package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

type outdatedOptions struct {
	all, exitCode bool
	jobs          int
}

func newOutdatedCmd(g *globals) *cobra.Command {
	var o outdatedOptions
	cmd := &cobra.Command{
		Use:   "outdated MANIFEST|LOCK|BUNDLE",
		Short: "List items with newer versions upstream",
		Long: `Asks upstream what is newer than what a manifest names, or a lock or bundle has: tags of images with the same suffix and as many
numbers (1.27-alpine: 1.29-alpine), versions of charts, Kubernetes' own binaries, releases at GitHub. PATCH is the newest
with the same major and minor number, MINOR with the same major number, LATEST of all. A tag whose digest is another now
has moved: the same name is something else than what is in the bundle. Items of which nobody says that are unknown.

How upstream is reached is what the manifest says (sources): the one beside a lock, the one in a bundle.`,
		Example: "  kkbundle outdated manifest.yaml\n  kkbundle outdated --exit-code site-1.4.0.kkb",
		Args:    takes("MANIFEST|LOCK|BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runOutdated(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	g.addTrust(f)
	f.BoolVarP(&o.all, "all", "a", false, "show what is up to date, too")
	f.BoolVar(&o.exitCode, "exit-code", false, "end with exit code 1 if something is outdated or has moved")
	f.IntVarP(&o.jobs, "jobs", "j", 0, fmt.Sprintf("requests at once (default %d)", fetch.DefaultJobs))
	return cmd
}

// outdatedResult is what outdated prints with --json.
type outdatedResult struct {
	Version int            `json:"version"` // 1
	Items   []outdatedItem `json:"items"`
}

type outdatedItem struct {
	Kind     string        `json:"kind"`
	Name     string        `json:"name"`
	Ref      string        `json:"ref"`
	Platform string        `json:"platform,omitempty"`
	State    string        `json:"state"` // current, outdated, moved, unknown or failed
	Have     string        `json:"have"`
	Patch    string        `json:"patch,omitempty"`  // newest with the same major and minor number
	Minor    string        `json:"minor,omitempty"`  // newest with the same major number
	Latest   string        `json:"latest,omitempty"` // newest of all
	Moved    digest.Digest `json:"moved,omitempty"`  // what the same tag or version is now
	Reason   string        `json:"reason,omitempty"` // why it is unknown or failed
}

func runOutdated(ctx context.Context, g *globals, path string, o outdatedOptions) error {
	if o.jobs < 0 {
		return &usageError{fmt.Errorf("--jobs %d: at least 1 request has to run", o.jobs)}
	}
	q, err := g.newQuestion(ctx, path)
	if err != nil {
		return err
	}
	q.pins = slices.DeleteFunc(slices.Clone(q.pins), func(p manifest.Pin) bool { return p.Kind == manifest.ItemReferrer }) // go with their images
	newer, failed := fetch.Outdated(ctx, q.pins, fetch.Options{Sources: q.sources, Dir: filepath.Dir(path), Jobs: o.jobs, Logger: g.logger()})
	if newer == nil {
		return failed
	}
	r := outdatedResult{Version: 1, Items: make([]outdatedItem, 0, len(newer))}
	for _, n := range newer {
		r.Items = append(r.Items, outdatedRow(n))
	}
	states := map[string]int{}
	for _, it := range r.Items {
		states[it.State]++
	}
	if g.json {
		err = printJSON(g.Out, r)
	} else {
		err = printOutdated(g, r, states, o.all)
	}
	if err = errors.Join(failed, err); err == nil && o.exitCode && states["outdated"]+states["moved"] > 0 {
		err = errDiffers
	}
	return err
}

func outdatedRow(n fetch.Newer) outdatedItem {
	it := outdatedItem{
		Kind: n.Pin.Kind, Name: cmp.Or(n.Pin.Name, n.Pin.Ref), Ref: n.Pin.Ref, Platform: n.Pin.Platform, Have: n.Pin.Version,
		Patch: n.Patch, Minor: n.Minor, Latest: n.Latest, Moved: n.Moved, Reason: n.Unknown, State: "current",
	}
	switch {
	case n.Err != nil:
		it.State, it.Reason = "failed", n.Err.Error()
	case n.Latest != "":
		it.State = "outdated"
	case n.Moved != "":
		it.State = "moved"
	case n.Unknown != "":
		it.State = "unknown"
	}
	return it
}

func printOutdated(g *globals, r outdatedResult, states map[string]int, all bool) error {
	var rows [][]string
	for _, it := range r.Items {
		if it.State == "current" && !all {
			continue
		}
		note := ""
		switch {
		case it.State == "failed":
			note = "failed"
		case it.State == "unknown":
			note = "unknown: " + it.Reason
		case it.Moved != "":
			note = "moved to " + shortDigest(it.Moved.String())
		}
		name := it.Name
		if it.Platform != "" {
			name += " (" + it.Platform + ")"
		}
		dash := func(s string) string { return cmp.Or(s, "-") }
		rows = append(rows, []string{it.Kind, name, dash(it.Have), dash(it.Patch), dash(it.Minor), dash(it.Latest), note})
	}
	if len(rows) > 0 {
		if err := printTable(g.Out, []string{"KIND", "NAME", "HAVE", "PATCH", "MINOR", "LATEST", "NOTE"}, rows); err != nil {
			return err
		}
	}
	var parts []string
	for _, state := range []string{"outdated", "moved", "failed", "unknown", "current"} {
		if states[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", states[state], state))
		}
	}
	g.note("%s", strings.Join(parts, ", "))
	return nil
}

// A question is what is asked about, and how upstream is reached.
type question struct {
	pins    []manifest.Pin
	sources []manifest.Source
}

func (g *globals) newQuestion(ctx context.Context, path string) (*question, error) {
	if !isText(path) {
		return g.bundleQuestion(ctx, path)
	}
	data, err := build.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if isLock(data) {
		return lockQuestion(path, data)
	}
	p, err := build.Load(path)
	if err != nil {
		return nil, err
	}
	q := &question{sources: p.Manifest.Sources}
	l, err := p.Lock()
	switch {
	case err != nil:
		return nil, err
	case l != nil && l.Covers(p.Manifest) == nil:
		q.pins = l.Items
	default:
		q.pins, err = unlocked(p.Manifest)
	}
	return q, err
}

// lockQuestion takes the sources of the manifest that the lock lies beside, if there is one.
func lockQuestion(path string, data []byte) (*question, error) {
	l, err := manifest.ParseLock(path, data)
	if err != nil {
		return nil, err
	}
	q := &question{pins: l.Items}
	ext := filepath.Ext(path)
	beside := strings.TrimSuffix(strings.TrimSuffix(path, ext), ".lock") + ext
	if _, err := os.Stat(beside); err != nil || beside == path {
		return q, nil //nolint:nilerr // a lock can be asked about without its manifest
	}
	p, err := build.Load(beside)
	if err != nil {
		return nil, err
	}
	q.sources = p.Manifest.Sources
	return q, nil
}

// bundleQuestion takes what the bundle's own lock and manifest say; where it carries none, what its index does.
func (g *globals) bundleQuestion(ctx context.Context, path string) (q *question, err error) {
	r, err := g.openBundle(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	q = &question{}
	if _, ok := r.Find(bundle.KindManifest, bundle.DocumentManifest, ""); ok {
		data, err := r.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
		if err != nil {
			return nil, err
		}
		b, err := manifest.ParseBundle(bundle.DocumentManifest, data)
		if err != nil {
			return nil, err
		}
		q.sources = b.Sources
	}
	if _, ok := r.Find(bundle.KindLock, bundle.DocumentLock, ""); ok {
		data, err := r.Document(ctx, bundle.KindLock, bundle.DocumentLock)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(bundle.DocumentLock, data)
		if err != nil {
			return nil, err
		}
		q.pins = l.Items
		return q, nil
	}
	for _, it := range r.Index().Items {
		pin := manifest.Pin{Kind: it.Kind, Ref: it.Ref, Name: it.Name, Version: it.Version, Platform: bundle.PlatformString(it.Descriptor.Platform)}
		switch it.Kind {
		case bundle.KindImage:
			pin.Digest, pin.Platform = it.Descriptor.Digest, ""
		case bundle.KindChart, bundle.KindFile:
		default:
			continue
		}
		q.pins = append(q.pins, pin)
	}
	return q, nil
}

// unlocked are the items of a manifest without a lock: what they mean today is not known, so nothing is said to have moved.
func unlocked(b *manifest.Bundle) ([]manifest.Pin, error) {
	var pins []manifest.Pin
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(ref, "@")
		pin := manifest.Pin{Kind: manifest.ItemImage, Ref: ref, Name: name}
		if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
			pin.Name, pin.Version = name[:i], name[i+1:]
		}
		pins = append(pins, pin)
	}
	for _, c := range b.Charts {
		ref := manifest.ChartRef(c, c.Name, c.Version)
		pins = append(pins, manifest.Pin{Kind: manifest.ItemChart, Ref: ref, Name: cmp.Or(c.Name, ref), Version: c.Version})
	}
	for _, f := range b.Files {
		for _, p := range f.PlatformsIn(b.Platforms) {
			pin := manifest.Pin{Kind: manifest.ItemFile, Ref: manifest.FileURL(f, p), Name: f.Name, Version: f.Version}
			if f.PerPlatform() {
				pin.Platform = p
			}
			pins = append(pins, pin)
			if !f.PerPlatform() {
				break
			}
		}
	}
	return pins, nil
}
