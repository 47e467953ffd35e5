package cli

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// fetchFlags are the flags of commands that download.
type fetchFlags struct {
	cache, level string
	jobs         int
}

func (f *fetchFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.cache, "cache", "", "directory of what was downloaded (default $KKBUNDLE_CACHE, else the user's cache directory)")
	fs.StringVar(&f.level, "level", bundle.LevelDefault.String(), "compression: fast, default, better or best")
	fs.IntVarP(&f.jobs, "jobs", "j", 0, fmt.Sprintf("transfers at once (default %d)", fetch.DefaultJobs))
}

// checked returns the level, if the flags make sense.
func (f *fetchFlags) checked() (bundle.Level, error) {
	if f.jobs < 0 {
		return 0, &usageError{fmt.Errorf("--jobs %d: at least 1 transfer has to run", f.jobs)}
	}
	level, err := bundle.ParseLevel(f.level)
	if err != nil {
		return 0, &usageError{err}
	}
	return level, nil
}

func (f *fetchFlags) openCache() (*bundle.Cache, string, error) {
	level, err := f.checked()
	if err != nil {
		return nil, "", err
	}
	dir, err := cacheDir(f.cache)
	if err != nil {
		return nil, "", err
	}
	c, err := bundle.OpenCache(dir, level)
	return c, dir, err
}

// memoryDir is where the cache remembers what files without a checksum were.
func memoryDir(cache string) string { return filepath.Join(cache, "upstream") }

func (g *globals) fetchOptions(p *project, c *bundle.Cache, jobs int, m *meter) fetch.Options {
	return fetch.Options{
		Store:     c,
		Sources:   p.manifest.Sources,
		Overrides: p.manifest.Overrides,
		Hosts:     p.hosts,
		Memory:    p.memory,
		Platforms: p.manifest.Platforms,
		Policy:    p.manifest.PlatformPolicy,
		Jobs:      jobs,
		Dir:       p.dir,
		Logger:    g.logger(),
		Progress: func(e fetch.Event) {
			m.set(e.Done, e.Total)
			if e.Type == fetch.EventFinished {
				g.item(m.name, itemName{e.Kind, e.Ref, e.Platform}, e.Err)
			}
		},
	}
}

func newLockCmd(g *globals) *cobra.Command {
	var flags fetchFlags
	var find findFlags
	cmd := &cobra.Command{
		Use:   "lock MANIFEST",
		Short: "Pin every item of a manifest by digest",
		Long: `Asks upstream what the manifest's tags and versions mean today and writes the digests into a lock file beside it
(manifest.lock.yaml for manifest.yaml). build then takes exactly these; run lock again to move to newer ones.
Charts are rendered, and Kubernetes YAML is read, to find images that nobody listed; these are pinned too.
Files whose checksum nobody publishes are downloaded to learn it, and the lock says so. What is attached to images (signatures,
attestations, SBOMs) is pinned with them; a signature that the manifest demands (verify) is checked, now and in every build.`,
		Example: "  kkbundle lock manifest.yaml",
		Args:    takes("MANIFEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runLock(cmd.Context(), g, args[0], lockOptions{flags, find})
		},
	}
	flags.add(cmd.Flags())
	find.add(cmd.Flags())
	return cmd
}

type lockOptions struct {
	fetchFlags
	findFlags
}

func runLock(ctx context.Context, g *globals, file string, o lockOptions) error {
	p, err := loadProject(file)
	if err != nil {
		return err
	}
	g.noteProblems(p.notes)
	g.assumed(p.assumptions)
	c, cacheDir, err := o.openCache()
	if err != nil {
		return err
	}
	defer c.Close()
	p.memory = memoryDir(cacheDir)
	f := newFinder(g, p, c, o)
	l, err := mending(g, c, func() (*manifest.Lock, error) { return f.resolve(ctx) })
	if err == nil {
		err = g.judge(l.Undecided, o.strict, file)
	}
	if err == nil {
		err = p.checkLock(l, f)
	}
	if err != nil {
		return err
	}
	data, err := l.Marshal()
	if err != nil {
		return err
	}
	path := lockFile(file)
	if err := writeFile(path, 0o644, bytes.NewReader(data)); err != nil {
		return err
	}
	if g.json {
		r := newLockResult(path, l)
		r.Assumed = p.assumptions
		return printJSON(g.Out, r)
	}
	g.noteAll(warnings(lockShortfalls(l)))
	g.note("%s: %s pinned%s", path, plain.Count(len(l.Items), "item"), firstUseNote(l))
	return nil
}

// lockResult is what lock prints with --json: the keys are those of the lock file.
type lockResult struct {
	Version int       `json:"version"` // 1
	Path    string    `json:"path"`
	Items   []lockPin `json:"items"`
	// Undecided is what may be an image and is none of the items.
	Undecided []string `json:"undecided,omitempty"`
	// Assumed is what the catalog does not know and took for granted.
	Assumed []string `json:"assumed,omitempty"`
}

type lockPin struct {
	Kind         string            `json:"kind"`
	Ref          string            `json:"ref"`
	Name         string            `json:"name"`
	Version      string            `json:"version,omitempty"`
	Platform     string            `json:"platform,omitempty"`
	URL          string            `json:"url,omitempty"`
	From         string            `json:"from,omitempty"`
	Digest       digest.Digest     `json:"digest"`
	Size         int64             `json:"size"`
	Provenance   digest.Digest     `json:"provenance,omitempty"`
	MediaType    string            `json:"mediaType,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Subject      digest.Digest     `json:"subject,omitempty"`
	Platforms    []string          `json:"platforms,omitempty"`
	Lacks        []string          `json:"lacks,omitempty"`
	Referrers    string            `json:"referrers,omitempty"`
	Key          string            `json:"key,omitempty"`
	KeyDigest    digest.Digest     `json:"keyDigest,omitempty"`
	Mode         manifest.FileMode `json:"mode,omitzero"`
	Package      string            `json:"package,omitempty"`
	Provides     []string          `json:"provides,omitempty"`
	Verified     string            `json:"verified"`
	WantedBy     []string          `json:"wantedBy,omitempty"`
}

func newLockResult(path string, l *manifest.Lock) lockResult {
	r := lockResult{Version: 1, Path: path, Items: make([]lockPin, 0, len(l.Items)), Undecided: l.Undecided}
	for _, pin := range l.Items {
		r.Items = append(r.Items, lockPin(pin))
	}
	return r
}

// firstUseNote says how many pins nobody but us vouches for.
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
