package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// cacheDir returns the cache directory: the flag, else $KKBUNDLE_CACHE, else the user's cache directory.
func cacheDir(flag string) (string, error) {
	if dir := cmp.Or(flag, os.Getenv("KKBUNDLE_CACHE")); dir != "" {
		return dir, nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no home directory for the cache; name a directory with --cache: %w", err)
	}
	return filepath.Join(user, "kkbundle"), nil
}

func newCacheCmd(g *globals) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Manage the download cache",
		Long: `Manages the cache, where build and lock keep downloads for later runs. Everything in it can be downloaded again.
Builds may run meanwhile; the files they use stay.`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			return usage.Errorf("name a subcommand: ls, gc, verify or dir; see `kkbundle cache --help`")
		},
	}
	cmd.PersistentFlags().StringVar(&dir, "cache", "",
		"directory of the cache (default $KKBUNDLE_CACHE, else the user's cache directory)")
	open := func() (cache.Dir, string, error) {
		path, err := cacheDir(dir)
		return cache.At(path), path, err
	}
	cmd.AddCommand(newCacheLsCmd(g, open), newCacheGCCmd(g, open), newCacheVerifyCmd(g, open), &cobra.Command{
		Use:   "dir",
		Short: "Print the cache directory",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			_, path, err := open()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(g.Out, path)
			return err
		},
	})
	return cmd
}

// A cacheOpener returns the cache of the command line, and its path.
type cacheOpener func() (cache.Dir, string, error)

func newCacheLsCmd(g *globals, open cacheOpener) *cobra.Command {
	var order string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the contents of the cache",
		Long: `Lists the blobs in the cache with their size, their size on disk, and the time since a build last used them; also
unfinished blobs with their size so far, and unknown files. A blob is listed once for each compression level.

With --json: {"dir", "files": [{"kind", "digest", "level", "encoder", "size", "disk", "used", "path", "damaged"}],
"totals"}; "kind" is blob, part or other, sizes are bytes.`,
		Example: "  kkbundle cache ls\n  kkbundle cache ls --sort size | tail",
		Args:    takes(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCacheLs(cmd.Context(), g, open, order) },
	}
	cmd.Flags().StringVar(&order, "sort", "digest",
		"order: digest, size, disk or used; all but digest need memory for the whole list")
	return cmd
}

// A cachedFile is a line of cache ls.
type cachedFile struct {
	Kind    cache.Kind    `json:"kind"`
	Digest  digest.Digest `json:"digest,omitempty"`
	Level   string        `json:"level,omitempty"`
	Encoder string        `json:"encoder,omitempty"`
	Size    int64         `json:"size"` // bytes of the blob, or of its unfinished part
	Disk    int64         `json:"disk"` // bytes
	Used    time.Time     `json:"used"`
	Path    string        `json:"path"`
	Damaged string        `json:"damaged,omitempty"` // reason, if it can be seen without reading the blob
}

// cacheTotals has the sums of cache ls.
type cacheTotals struct {
	Blobs   int   `json:"blobs"`
	Parts   int   `json:"parts"`
	Others  int   `json:"others"`
	Damaged int   `json:"damaged"`
	Size    int64 `json:"size"` // bytes of the blobs and parts
	Disk    int64 `json:"disk"` // bytes of everything
}

func (t *cacheTotals) add(f cachedFile) {
	switch f.Kind {
	case cache.Blob:
		t.Blobs++
	case cache.Part:
		t.Parts++
	case cache.Other:
		t.Others++
	}
	if f.Damaged != "" {
		t.Damaged++
	}
	t.Size += f.Size
	t.Disk += f.Disk
}

// cacheOrders returns the orders of cache ls; nil is the order of the directory, which needs no memory.
func cacheOrders() map[string]func(a, b cachedFile) int {
	return map[string]func(a, b cachedFile) int{
		"digest": nil,
		"size":   func(a, b cachedFile) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Path, b.Path)) },
		"disk":   func(a, b cachedFile) int { return cmp.Or(cmp.Compare(a.Disk, b.Disk), cmp.Compare(a.Path, b.Path)) },
		"used":   func(a, b cachedFile) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Path, b.Path)) },
	}
}

func runCacheLs(ctx context.Context, g *globals, open cacheOpener, order string) error {
	compare, ok := cacheOrders()[order]
	if !ok {
		return usage.Errorf("--sort %s: want digest, size, disk or used", order)
	}
	dir, path, err := open()
	if err != nil {
		return err
	}
	var list fileLister = &cacheTable{out: g.Out, now: time.Now()}
	if g.JSON {
		list = &cacheJSON{out: g.Out}
	}
	if err := list.begin(path); err != nil {
		return err
	}
	var (
		totals cacheTotals
		all    []cachedFile
	)
	for f, err := range dir.Files(ctx) {
		if err != nil {
			return err
		}
		line, err := newCachedFile(dir, f)
		if err != nil {
			return err
		}
		totals.add(line)
		if compare != nil {
			all = append(all, line)
		} else if err := list.file(line); err != nil {
			return err
		}
	}
	if compare != nil {
		slices.SortFunc(all, compare)
	}
	for _, line := range all {
		if err := list.file(line); err != nil {
			return err
		}
	}
	return list.end(totals)
}

func newCachedFile(dir cache.Dir, f cache.File) (cachedFile, error) {
	line := cachedFile{
		Kind: f.Kind, Digest: f.Digest, Level: f.Level, Encoder: f.Encoder, Disk: f.Disk, Used: f.Used,
		Path: f.Path,
	}
	if f.Kind != cache.Other && f.Level == "" {
		return line, nil // of another version, in an unknown format
	}
	var (
		damaged *cache.EntryError
		err     error
	)
	line.Size, err = dir.Size(f)
	switch {
	case errors.As(err, &damaged):
		line.Damaged = damaged.Reason
	case errors.Is(err, os.ErrNotExist): // it was removed meanwhile
	default:
		return line, err
	}
	return line, nil
}

// A fileLister prints a list of unknown length.
type fileLister interface {
	begin(dir string) error
	file(f cachedFile) error
	end(t cacheTotals) error
}

// cacheTable prints columns of fixed width, because later rows are unknown.
type cacheTable struct {
	out io.Writer
	now time.Time
}

const cacheColumns = "%-7s  %10s  %10s  %6s  %s\n"

func (t *cacheTable) begin(string) error {
	_, err := fmt.Fprintf(t.out, cacheColumns, "LEVEL", "SIZE", "ON DISK", "UNUSED", "BLOB")
	return err
}

func (t *cacheTable) file(f cachedFile) error {
	name, bytes, level := f.Digest.String(), plain.Size(f.Size), cmp.Or(f.Level, "other")
	if name == "" {
		name = plain.Line(f.Path)
	}
	switch {
	case f.Kind == cache.Other:
		name, bytes = name+" (unknown file)", "-"
	case f.Damaged != "":
		name, bytes = name+" (damaged: "+f.Damaged+")", "-"
	case f.Level == "":
		name, bytes = name+" (of another version of kkbundle)", "-"
	case f.Kind == cache.Part:
		name += " (unfinished)"
	}
	_, err := fmt.Fprintf(t.out, cacheColumns, level, bytes, plain.Size(f.Disk), usage.FormatAge(t.now.Sub(f.Used)),
		name)
	return err
}

func (t *cacheTable) end(sum cacheTotals) error {
	_, err := fmt.Fprintf(t.out, "%s, %d unfinished, %d of unknown use: %s, %s on disk\n",
		plain.Count(sum.Blobs, "blob"), sum.Parts, sum.Others, plain.Size(sum.Size), plain.Size(sum.Disk))
	return err
}

// cacheJSON prints one document, an element at a time.
type cacheJSON struct {
	out   io.Writer
	files int
}

func (j *cacheJSON) begin(dir string) error {
	name, err := json.Marshal(dir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(j.out, "{\n  \"version\": 1,\n  \"dir\": %s,\n  \"files\": [", name)
	return err
}

func (j *cacheJSON) file(f cachedFile) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	separator := ",\n    "
	if j.files == 0 {
		separator = "\n    "
	}
	j.files++
	_, err = j.out.Write(append([]byte(separator), line...))
	return err
}

func (j *cacheJSON) end(t cacheTotals) error {
	sum, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(j.out, "\n  ],\n  \"totals\": %s\n}\n", sum)
	return err
}

type cacheGCOptions struct {
	maxSize, olderThan string
	keep               []string
	dryRun             bool
}

func newCacheGCCmd(g *globals, open cacheOpener) *cobra.Command {
	var o cacheGCOptions
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove unused blobs from the cache",
		Long: `Removes files that no build can use: blobs in an unknown format, abandoned downloads, unknown files. --older-than
also removes blobs unused for longer. --max-size then removes blobs, longest unused first, until the cache fits. Blobs
of running builds stay, and so do blobs of the lock files and bundles of --keep. A removed blob is downloaded again
when a build needs it.`,
		Example: "  kkbundle cache gc --max-size 20GiB\n  kkbundle cache gc --older-than 30d --keep manifest.lock.yaml --dry-run",
		Args:    takes(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCacheGC(cmd.Context(), g, open, o) },
	}
	cmd.Flags().StringVar(&o.maxSize, "max-size", "", "largest size on disk, such as 20GiB or 500MB")
	cmd.Flags().StringVar(&o.olderThan, "older-than", "", "longest time a blob may be unused, such as 30d, 2w or 12h")
	cmd.Flags().StringArrayVar(&o.keep, "keep", nil, "keep the blobs of this lock file or bundle (repeated)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print files that would be removed, and remove nothing")
	g.addKeys(cmd.Flags())
	return cmd
}

// cacheGCResult is the JSON output of cache gc. Sizes are bytes on disk.
type cacheGCResult struct {
	Version int      `json:"version"` // 1
	DryRun  bool     `json:"dryRun"`
	Removed int      `json:"removed"` // number of files, like kept and inUse
	Kept    int      `json:"kept"`
	InUse   int      `json:"inUse"` // of those kept
	Freed   int64    `json:"freed"`
	Left    int64    `json:"left"`
	Files   []string `json:"files"` // paths that were removed
}

func runCacheGC(ctx context.Context, g *globals, open cacheOpener, o cacheGCOptions) error {
	options, err := o.parse()
	if err != nil {
		return err
	}
	dir, _, err := open()
	if err != nil {
		return err
	}
	if options.Keep, err = builder.Keeper(ctx, dir, o.keep, g.openUnchecked); err != nil {
		return err
	}
	out := cacheGCResult{Version: 1, DryRun: o.dryRun, Files: []string{}}
	options.Removed = func(f cache.File) {
		if g.JSON {
			out.Files = append(out.Files, f.Path)
		}
		if o.dryRun || g.Verbose {
			g.Note("%s %s (%s, unused for %s)", f.Kind, cmp.Or(f.Digest.String(), plain.Line(f.Path)),
				plain.Size(f.Disk), usage.FormatAge(time.Since(f.Used)))
		}
	}
	r, err := dir.GC(ctx, options)
	if err != nil {
		return err
	}
	if g.JSON {
		out.Removed, out.Kept, out.InUse, out.Freed, out.Left = r.Removed, r.Kept, r.InUse, r.Freed, r.Left
		return g.PrintJSON(out)
	}
	verb := "removed"
	if o.dryRun {
		verb = "would remove"
	}
	g.Note("%s %s, %s; %s left%s", verb, plain.Count(r.Removed, "file"), plain.Size(r.Freed), plain.Size(r.Left),
		tooMuchLeft(r, options))
	return nil
}

// tooMuchLeft returns the reason why the cache is larger than --max-size.
func tooMuchLeft(r cache.GCResult, o cache.GCOptions) string {
	if o.MaxSize == nil || r.Left <= *o.MaxSize {
		return ""
	}
	return ", which is more than --max-size: the rest is in use by a running build or kept by --keep"
}

func (o cacheGCOptions) parse() (cache.GCOptions, error) {
	out := cache.GCOptions{DryRun: o.dryRun}
	var errs []error
	if o.maxSize != "" {
		n, err := usage.ParseSize(o.maxSize)
		if err != nil {
			errs = append(errs, fmt.Errorf("--max-size: %w", err))
		}
		out.MaxSize = &n
	}
	if o.olderThan != "" {
		d, err := usage.ParseAge(o.olderThan)
		if err != nil {
			errs = append(errs, fmt.Errorf("--older-than: %w", err))
		}
		out.OlderThan = &d
	}
	if err := errors.Join(errs...); err != nil {
		return out, &usage.Error{Err: err}
	}
	return out, nil
}

func newCacheVerifyCmd(g *globals, open cacheOpener) *cobra.Command {
	var o cache.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify every cached blob and drop damaged ones",
		Long: `Reads every blob in the cache and compares its checksum, which finds damage by a disk. --deep also unpacks it and
compares its digest. Damaged blobs are dropped, and the next build downloads them again. Exits with 19 if a blob was
damaged. Builds check blobs as well.`,
		Example: "  kkbundle cache verify --deep",
		Args:    takes(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCacheVerify(cmd.Context(), g, open, o) },
	}
	cmd.Flags().BoolVar(&o.Deep, "deep", false, "also compare the digest of every blob")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "list damaged blobs, and drop none")
	return cmd
}

// cacheVerifyResult is the JSON output of cache verify.
type cacheVerifyResult struct {
	Version int           `json:"version"` // 1
	Checked int           `json:"checked"` // blobs
	Skipped int           `json:"skipped"` // blobs of other versions of kkbundle
	Bytes   int64         `json:"bytes"`   // on disk, of those checked
	Damaged []damagedBlob `json:"damaged"`
}

type damagedBlob struct {
	Digest digest.Digest `json:"digest"`
	Path   string        `json:"path"`
	Reason string        `json:"reason"`
}

// A cacheDamageError lists damaged blobs of the cache.
type cacheDamageError struct {
	damaged []*cache.EntryError
	dropped bool
}

// Error has a line for each blob.
func (e *cacheDamageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s in the cache, ", plain.Count(len(e.damaged), "damaged blob"))
	if e.dropped {
		b.WriteString("dropped; the next build downloads them again if needed:")
	} else {
		b.WriteString("left there because of --dry-run:")
	}
	for _, d := range e.damaged {
		fmt.Fprintf(&b, "\n  %s: %s (%s)", d.Digest, d.Reason, d.Path)
	}
	return b.String()
}

func runCacheVerify(ctx context.Context, g *globals, open cacheOpener, o cache.VerifyOptions) error {
	dir, path, err := open()
	if err != nil {
		return err
	}
	m := g.NewMeter("verify")
	o.Progress = m.Set
	r, err := dir.Verify(ctx, o)
	m.Stop()
	if err != nil {
		return err
	}
	if g.JSON {
		out := cacheVerifyResult{
			Version: 1, Checked: r.Checked, Skipped: r.Skipped, Bytes: r.Bytes,
			Damaged: []damagedBlob{},
		}
		for _, d := range r.Damaged {
			out.Damaged = append(out.Damaged, damagedBlob{d.Digest, d.Path, d.Reason})
		}
		if err := g.PrintJSON(out); err != nil {
			return err
		}
	}
	if len(r.Damaged) > 0 {
		return &cacheDamageError{r.Damaged, !o.DryRun}
	}
	more := ""
	if r.Skipped > 0 {
		more = fmt.Sprintf("; %s of other versions of kkbundle not checked", plain.Count(r.Skipped, "blob"))
	}
	g.Note("%s: %s, %s: all whole%s", path, plain.Count(r.Checked, "blob"), plain.Size(r.Bytes), more)
	return nil
}
