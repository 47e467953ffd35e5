package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// fetchFlags are the flags of commands that download.
type fetchFlags struct {
	cache, level string
	jobs         usage.Jobs
}

func (f *fetchFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.cache, "cache", "", "cache directory (default $KKBUNDLE_CACHE, else the user's cache directory)")
	fs.StringVar(&f.level, "level", bundle.LevelDefault.String(), "compression: fast, default, better or best")
	f.jobs = fetch.DefaultJobs
	fs.VarP(&f.jobs, "jobs", "j", "transfers at once")
}

// compression returns the level.
func (f *fetchFlags) compression() (bundle.Level, error) {
	level, err := bundle.ParseLevel(f.level)
	if err != nil {
		return 0, &usage.Error{Err: err}
	}
	return level, nil
}

func (f *fetchFlags) openCache() (*cache.Cache, string, error) {
	level, err := f.compression()
	if err != nil {
		return nil, "", err
	}
	dir, err := cacheDir(f.cache)
	if err != nil {
		return nil, "", err
	}
	c, err := cache.Open(dir, level)
	return c, dir, err
}

// projectFlags are the flags of commands that resolve or build a manifest.
type projectFlags struct {
	fetchFlags
	strict        bool
	renderTimeout time.Duration
	assume        bool
	update        bool
	values        valueFlags
}

func (f *projectFlags) add(fs *pflag.FlagSet) {
	f.fetchFlags.add(fs)
	fs.BoolVar(&f.strict, "strict", false, "fail if a text may be an image")
	fs.DurationVar(&f.renderTimeout, "render-timeout", time.Minute, "longest time to render one chart")
	f.values.add(fs)
	fs.BoolVar(&f.assume, "assume", false,
		"accept a minor release of Kubernetes that this kkbundle does not know; the lock records it")
}

func (f *projectFlags) addUpdate(fs *pflag.FlagSet) {
	fs.BoolVar(&f.update, "update", false, "if the lock does not fit the manifest, look up unchanged items again, too")
}

func (f *projectFlags) options(g *globals) (o builder.Options, err error) {
	if o.Level, err = f.compression(); err != nil {
		return o, err
	}
	if o.Cache, err = cacheDir(f.cache); err != nil {
		return o, err
	}
	o.Update = f.update
	o.Jobs, o.Strict, o.RenderTimeout, o.Events, o.Logger = int(f.jobs), f.strict, f.renderTimeout, g.showBuild(),
		g.Logger()
	return o, nil
}

// loadFamily loads a manifest with its variants, or one of them, and prints remarks about its cluster files.
func (g *globals) loadFamily(file, variant string, f projectFlags) (*builder.Family, error) {
	o, err := f.values.options()
	if err != nil {
		return nil, err
	}
	o.Assume, o.Variant = f.assume, variant
	family, err := builder.LoadFamily(file, o)
	if err != nil {
		return nil, err
	}
	var names []string
	var errs []error
	for _, p := range family.Projects {
		names, errs = append(names, p.Variant), append(errs, builder.CheckFiles(p.File, p.Manifest))
	}
	if err := builder.OfVariants(names, errs); err != nil {
		return nil, err
	}
	said := map[string]bool{}
	for _, p := range family.Projects {
		if key := fmt.Sprint(p.Notes, p.Assumptions); !said[key] {
			said[key] = true
			g.NoteProblems(p.Notes)
			g.assumed(p.Assumptions)
		}
		if len(family.Projects) == 1 {
			g.noteIdleCharts(p)
		}
	}
	return family, nil
}

// loadProject loads a manifest without variants, or one variant.
func (g *globals) loadProject(file, variant string, f projectFlags) (*builder.Project, error) {
	family, err := g.loadFamily(file, variant, f)
	if err != nil {
		return nil, err
	}
	if len(family.Projects) > 1 {
		return nil, usage.Errorf("%s has variants: name one with --variant", plain.Line(file))
	}
	return family.Projects[0], nil
}

// addVariant adds the flag that picks a variant.
func addVariant(f *pflag.FlagSet, name *string, all string) {
	f.StringVar(name, "variant", "", "only this variant of a manifest with variants"+all)
}

// showBuild returns a function that shows the events of a build.
func (g *globals) showBuild() func(builder.Event) {
	var current atomic.Pointer[terminal.Meter]
	return func(e builder.Event) {
		m := current.Load()
		switch e.Type {
		case builder.EventBegan:
			current.Store(g.NewMeter(e.Phase))
		case builder.EventProgress:
			m.Set(e.Done, e.Total)
			if e.Done > 0 && (e.Phase == builder.PhaseResolve || e.Phase == builder.PhaseFetch) {
				g.downloads.any.Store(true)
			}
		case builder.EventItemBegan:
			if e.Kind == manifest.ItemGit {
				g.downloads.git.Add(1)
			}
			m.Begin(e.Ref)
		case builder.EventItem:
			if e.Kind == manifest.ItemGit && e.Err == nil {
				g.downloads.git.Add(-1)
			}
			m.Finish(e.Ref)
			g.Item(e.Phase, terminal.ItemName{Kind: e.Kind, Ref: e.Ref, Platform: e.Platform}, e.Err)
		case builder.EventEnded:
			m.Stop()
		case builder.EventNote:
			g.Note("%s", plain.Lines(e.Text))
		}
	}
}

func newLockCmd(g *globals) *cobra.Command {
	var flags projectFlags
	cmd := &cobra.Command{
		Use:   "lock [MANIFEST|DIR]",
		Short: "Pin every item of a manifest by digest",
		Long: `Looks up the current digests of the manifest's tags and versions and writes them to a lock file beside it
(manifest.lock.yaml for manifest.yaml). build then uses exactly these; run lock again to move to newer ones. MANIFEST is
manifest.yaml of this directory by default; DIR stands for the manifest in it.

After a change of the manifest or of its files, only new and changed items are looked up, and operating system
packages; --update looks up all items. Charts are rendered, and Kubernetes YAML is read, to find images that nobody
listed; these are pinned too. The kubeadm of a cluster is downloaded and asked for the images of its release. Files
without a published checksum are downloaded to compute it, and the lock records that. Signatures, attestations and
SBOMs attached to images are pinned with them. Signatures that the manifest requires (verify) are checked now and in
every build. The variants of a manifest are pinned together: one lock has each pin once, with the variants that have
it. An existing lock file is replaced. Any other file in its place is an error.`,
		Example: "  kkbundle lock manifest.yaml",
		Args:    takes("[MANIFEST|DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := manifestFile(args)
			if err != nil {
				return err
			}
			return runLock(cmd.Context(), g, file, flags)
		},
	}
	flags.add(cmd.Flags())
	flags.addUpdate(cmd.Flags())
	return cmd
}

func runLock(ctx context.Context, g *globals, file string, o projectFlags) error {
	family, err := g.loadFamily(file, "", o)
	if err != nil {
		return err
	}
	path := builder.LockFile(file)
	if err := checkLockOutput(path); err != nil {
		return err
	}
	opts, err := o.options(g)
	if err != nil {
		return err
	}
	l, err := family.Resolve(ctx, opts)
	if err != nil {
		return err
	}
	data, err := l.Marshal()
	if err != nil {
		return err
	}
	if err := disk.WriteFile(path, 0o644, bytes.NewReader(data)); err != nil {
		return err
	}
	if g.JSON {
		r := newLockResult(path, l)
		for _, p := range family.Projects {
			r.Assumed = append(r.Assumed, p.Assumptions...)
		}
		r.Assumed = slices.Compact(slices.Sorted(slices.Values(r.Assumed)))
		return g.PrintJSON(r)
	}
	g.NoteAll(warnings(lockShortfalls(l)))
	g.Note("%s: %s pinned%s", path, plain.Count(len(l.Items), "item"), firstUseNote(l))
	return nil
}

// checkLockOutput refuses a file that is not a lock.
func checkLockOutput(path string) error {
	if !occupied(path) {
		return nil
	}
	data, err := builder.ReadLock(path)
	if err == nil && !manifest.IsLock(data) {
		err = &builder.InputError{Err: fmt.Errorf("%s exists and is not a lock file: rename or remove it", path)}
	}
	return err
}

// lockResult is the JSON output of lock: the keys are those of the lock file.
type lockResult struct {
	Version int       `json:"version"` // 1
	Path    string    `json:"path"`
	Items   []lockPin `json:"items"`
	// Undecided lists texts that may be images and are not pinned.
	Undecided []string `json:"undecided,omitempty"`
	// Assumed lists assumptions of the catalog.
	Assumed []string `json:"assumed,omitempty"`
}

type lockPin struct {
	Kind         string                `json:"kind"`
	Ref          string                `json:"ref"`
	Name         string                `json:"name"`
	Version      string                `json:"version,omitempty"`
	Platform     string                `json:"platform,omitempty"`
	URL          string                `json:"url,omitempty"`
	From         string                `json:"from,omitempty"`
	Checksums    string                `json:"checksums,omitempty"`
	Digest       digest.Digest         `json:"digest"`
	Size         int64                 `json:"size"`
	Provenance   digest.Digest         `json:"provenance,omitempty"`
	MediaType    string                `json:"mediaType,omitempty"`
	ArtifactType string                `json:"artifactType,omitempty"`
	Subject      digest.Digest         `json:"subject,omitempty"`
	Platforms    []string              `json:"platforms,omitempty"`
	Complete     bool                  `json:"complete,omitempty"`
	Lacks        []string              `json:"lacks,omitempty"`
	Referrers    string                `json:"referrers,omitempty"`
	Key          string                `json:"key,omitempty"`
	KeyDigest    digest.Digest         `json:"keyDigest,omitempty"`
	Identity     string                `json:"identity,omitempty"`
	Issuer       string                `json:"issuer,omitempty"`
	Root         string                `json:"root,omitempty"`
	RootDigest   digest.Digest         `json:"rootDigest,omitempty"`
	Mode         scalar.FileMode       `json:"mode,omitzero"`
	Git          *manifest.LockedGit   `json:"git,omitempty"`
	Package      string                `json:"package,omitempty"`
	Provides     []string              `json:"provides,omitempty"`
	Groups       []string              `json:"groups,omitempty"`
	Verified     manifest.Verification `json:"verified"`
	WantedBy     []string              `json:"wantedBy,omitempty"`
	Variants     []string              `json:"variants,omitempty"`
}

func newLockResult(path string, l *manifest.Lock) lockResult {
	r := lockResult{Version: 1, Path: path, Items: make([]lockPin, 0, len(l.Items)), Undecided: l.Undecided}
	for _, pin := range l.Items {
		r.Items = append(r.Items, lockPin(pin))
	}
	return r
}

// firstUseNote returns the number of pins without a published checksum.
func firstUseNote(l *manifest.Lock) string {
	n := 0
	for _, pin := range l.Items {
		if pin.Verified == manifest.VerifiedFirstUse {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d on first use, because upstream publishes no checksum", n)
}
