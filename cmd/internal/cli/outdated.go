package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

type outdatedOptions struct {
	all, exitCode bool
	jobs          usage.Jobs
	values        valueFlags
}

func newOutdatedCmd(g *globals) *cobra.Command {
	var o outdatedOptions
	cmd := &cobra.Command{
		Use:   "outdated [MANIFEST|DIR|LOCK|BUNDLE]",
		Short: "List items with newer versions upstream",
		Long: `Asks upstream for newer versions of the items of a manifest, lock or bundle: image tags with the same suffix and as
many numbers (1.27-alpine: 1.29-alpine), versions of charts, Kubernetes' own binaries, releases on GitHub. PATCH is
the newest version with the same major and minor number, MINOR with the same major number, LATEST the newest of all. A
tag with a new digest has moved. Items without published versions are unknown. An item of a lock or bundle that
upstream, or its mirror, no longer has is removed. NOTE says since when a release line of Kubernetes or containerd has
no more support.

The manifest's sources are used: of the manifest beside a lock, or in a bundle. A bundle's sources with ca, cert, key
or directory are refused: name the manifest or the lock instead.`,
		Example: "  kkbundle outdated manifest.yaml\n  kkbundle outdated --exit-code site-1.4.0.kkb",
		Args:    takes("[MANIFEST|DIR|LOCK|BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := manifestFile(args)
			if err != nil {
				return err
			}
			return runOutdated(cmd.Context(), g, file, o)
		},
	}
	f := cmd.Flags()
	g.addTrust(f)
	f.BoolVarP(&o.all, "all", "a", false, "also show items that are up to date")
	f.BoolVar(&o.exitCode, "exit-code", false,
		"end with exit code 1 if something is outdated, has moved, was removed or has no more support")
	o.jobs = fetch.DefaultJobs
	f.VarP(&o.jobs, "jobs", "j", "requests at once")
	o.values.add(f)
	return cmd
}

// outdatedResult is the JSON output of outdated.
type outdatedResult struct {
	Version int            `json:"version"` // 1
	Items   []outdatedItem `json:"items"`
}

type outdatedItem struct {
	Kind     string        `json:"kind"`
	Name     string        `json:"name"`
	Ref      string        `json:"ref"`
	Platform string        `json:"platform,omitempty"`
	State    string        `json:"state"` // current, outdated, moved, removed, unknown or failed
	Have     string        `json:"have"`
	Patch    string        `json:"patch,omitempty"`     // newest with the same major and minor number
	Minor    string        `json:"minor,omitempty"`     // newest with the same major number
	Latest   string        `json:"latest,omitempty"`    // newest of all
	Moved    digest.Digest `json:"moved,omitempty"`     // current digest of the tag or version
	Ends     string        `json:"endOfLife,omitempty"` // last day of upstream's support, such as 2026-06-28
	Ended    bool          `json:"ended,omitempty"`     // that day is over
	Reason   string        `json:"reason,omitempty"`    // of unknown or failed
}

func runOutdated(ctx context.Context, g *globals, path string, o outdatedOptions) error {
	q, err := g.question(ctx, path, o.values)
	if err != nil {
		return err
	}
	// go with their images
	q.Pins = slices.DeleteFunc(slices.Clone(q.Pins),
		func(p manifest.Pin) bool { return p.Kind == manifest.ItemReferrer })
	newer, failed := fetch.Outdated(ctx, q.Pins, fetch.Options{
		Sources: q.Sources, Dir: filepath.Dir(path),
		Jobs: int(o.jobs), Logger: g.Logger(),
	})
	if newer == nil {
		return failed
	}
	r := outdatedResult{Version: 1, Items: make([]outdatedItem, 0, len(newer))}
	states := map[string]int{}
	for _, n := range newer {
		it, err := outdatedRow(n, time.Now())
		if err != nil {
			return err
		}
		r.Items = append(r.Items, it)
		states[it.State]++
		if it.Ended {
			states[stateEnded]++
		}
	}
	if g.JSON {
		err = g.PrintJSON(r)
	} else {
		err = printOutdated(g, r, states, o.all)
	}
	if err = errors.Join(failed, err); err == nil && o.exitCode &&
		states["outdated"]+states["moved"]+states["removed"]+states[stateEnded] > 0 {
		err = errDiffers
	}
	return err
}

// stateEnded counts items without support, whatever their state.
const stateEnded = "without support"

func outdatedRow(n fetch.Newer, now time.Time) (outdatedItem, error) {
	it := outdatedItem{
		Kind: n.Pin.Kind, Name: cmp.Or(n.Pin.Name, n.Pin.Ref), Ref: n.Pin.Ref, Platform: n.Pin.Platform,
		Have:  n.Pin.Version,
		Patch: n.Patch, Minor: n.Minor, Latest: n.Latest, Moved: n.Moved, Reason: n.Unknown, State: "current",
	}
	switch {
	case n.Err != nil:
		it.State, it.Reason = "failed", n.Err.Error()
	case n.Removed:
		it.State = "removed"
	case n.Latest != "":
		it.State = "outdated"
	case n.Moved != "":
		it.State = "moved"
	case n.Unknown != "":
		it.State = "unknown"
	}
	var err error
	it.Ends, err = catalog.EndOfLife(n.Pin)
	it.Ended = it.Ends != "" && now.UTC().Format(time.DateOnly) > it.Ends
	return it, err
}

// note returns the last column of an item.
func (it outdatedItem) note() string {
	var notes []string
	switch it.State {
	case "failed":
		notes = append(notes, "failed")
	case "removed":
		notes = append(notes, "removed upstream")
	case "unknown":
		notes = append(notes, "unknown: "+it.Reason)
	}
	if it.Moved != "" {
		notes = append(notes, "moved to "+shortDigest(it.Moved.String()))
	}
	if it.Ended {
		notes = append(notes, "no support since "+it.Ends)
	}
	return strings.Join(notes, "; ")
}

func printOutdated(g *globals, r outdatedResult, states map[string]int, all bool) error {
	var rows [][]string
	for _, it := range r.Items {
		if it.State == "current" && !it.Ended && !all {
			continue
		}
		name := it.Name
		if it.Platform != "" {
			name += " (" + it.Platform + ")"
		}
		dash := func(s string) string { return cmp.Or(s, "-") }
		rows = append(rows, []string{
			it.Kind, name, dash(it.Have), dash(it.Patch), dash(it.Minor), dash(it.Latest),
			it.note(),
		})
	}
	if len(rows) > 0 {
		if err := g.PrintTable([]string{"KIND", "NAME", "HAVE", "PATCH", "MINOR", "LATEST", "NOTE"}, rows); err != nil {
			return err
		}
	}
	var parts []string
	for _, state := range []string{"outdated", "moved", "removed", "failed", "unknown", "current", stateEnded} {
		if states[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", states[state], state))
		}
	}
	g.Note("%s", strings.Join(parts, ", "))
	return nil
}

func (g *globals) question(ctx context.Context, path string, values valueFlags) (_ *builder.Question, err error) {
	if usage.IsYAML(path) {
		o, err := values.options()
		if err != nil {
			return nil, err
		}
		return builder.NewFamilyQuestion(path, o)
	}
	r, err := g.openBundle(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return builder.BundleQuestion(ctx, r)
}
