package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/extract"
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// Values of --format.
const (
	formatOCI        = "oci"
	formatOCIArchive = "oci-archive"
	formatDocker     = "docker-archive"
	formatTree       = "tree"
)

type extractOptions struct {
	output, platform, format, byteRange string
	host, inventory, cluster            string
	items                               []string
	group                               groupFlag
	unchecked, self                     bool
	overwrite                           overwrite
	wanted                              transfer.Platforms
	part                                *extract.Range // of byteRange, nil without
}

func newExtractCmd(g *globals) *cobra.Command {
	var o extractOptions
	cmd := &cobra.Command{
		Use:   "extract BUNDLE [NAME]",
		Short: "Extract items from a bundle",
		Long: `Extracts one item: a file or chart as a file, an image as an OCI image layout directory, a Git repository as a bare
repository, NAME.git, which git clone takes. A digest as NAME extracts that blob. Without NAME, the whole bundle becomes
an OCI image layout directory.

  -o -       a file, chart, archive or blob goes to standard output
  --format   oci-archive, or docker-archive for docker load, podman load and ctr images import: an image as an
             archive, for one platform. tree: a directory with files/, charts/, documents/, git/, packages/ (an apt or
             dnf repository for each distribution), and images/ (an OCI layout)
  --item     several items, as a tree by default
  --group    the items of groups and those without a group, as a tree by default. Guide: docs/build/composition.md
  --self     kkbundle's own program for this machine, or for --platform, if the manifest has the key self
  --for      the items of a host of the inventory: files/, and images/ as archives for ctr images import
  --range    bytes of a file, chart or blob, after checking the whole of it

A directory must be empty or absent; an interrupted layout continues. --force writes into any directory, and replaces
its files.

` + itemsHelp,
		Example: `  kkbundle extract site-1.4.0.kkb kubeadm --platform linux/arm64
  kkbundle extract site-1.4.0.kkb nginx:1.29 --format docker-archive --platform linux/amd64 -o - | docker load
  kkbundle extract site-1.4.0.kkb debian.iso --range 0-1023 | xxd
  kkbundle extract site-1.4.0.kkb --item 'file/kube*' --platform linux/amd64 -o tree/
  kkbundle extract site-1.4.0.kkb --for node3 -i inventory.yaml --platform linux/amd64 -o node3/
  kkbundle extract site-1.4.0.kkb -o layout/
  kkbundle extract --self site-1.4.0.kkb`,
		Args: takes("BUNDLE", "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			return runExtract(cmd.Context(), g, args[0], name, o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "",
		"file or directory to write, - for standard output (default the item's name)")
	f.StringVar(&o.platform, "platform", "", "platform of the file or image, if there are several")
	f.StringVar(&o.format, "format", "", "oci, oci-archive, docker-archive or tree (default oci)")
	f.StringVar(&o.byteRange, "range", "", "only these bytes, FIRST-LAST or FIRST-, both counted from 0 and included")
	f.BoolVar(&o.unchecked, "unchecked", false,
		"extract --range without checking the whole: detects damage, but not forgery")
	f.StringArrayVar(&o.items, "item", nil, "extract these items, as a tree (repeated)")
	o.group.add(f, "extract")
	f.BoolVar(&o.self, "self", false, "extract kkbundle's own program")
	f.StringVar(&o.host, "for", "", "extract the items of this host of the inventory")
	o.overwrite.add(f)
	f.StringVarP(&o.inventory, "inventory", "i", "", "the inventory file, with --for")
	f.StringVarP(&o.cluster, "cluster", "c", "", "the cluster file, with --for (default the one in the bundle)")
	g.addTrust(f)
	return cmd
}

// extractResult is the output of --json.
type extractResult struct {
	Version int           `json:"version"` // 1
	Path    string        `json:"path"`
	Digest  digest.Digest `json:"digest,omitempty"` // of the file's content in the bundle
	Size    int64         `json:"size,omitempty"`   // of that, in bytes
	Items   int           `json:"items"`
}

// check returns an error for a wrong command line.
func (o *extractOptions) check(name string) error {
	several := name == "" || len(o.items)+len(o.group.names) > 0
	formats := []string{"", formatOCI, formatOCIArchive, formatDocker, formatTree}
	var err error
	switch {
	case !slices.Contains(formats, o.format):
		err = fmt.Errorf("--format %s: want oci, oci-archive, docker-archive or tree", o.format)
	case o.host != "" && (name != "" || len(o.items)+len(o.group.names) > 0 || o.format != ""):
		err = errors.New("--for excludes NAME, --item, --group and --format")
	case o.self && (name+o.host+o.format+o.byteRange != "" || len(o.items)+len(o.group.names) > 0):
		err = errors.New("--self names what is extracted: leave out NAME, --for, --item, --group, --format and --range")
	case o.host == "" && (o.inventory != "" || o.cluster != ""):
		err = errors.New("-i and -c go with --for HOST")
	case name != "" && len(o.items)+len(o.group.names) > 0:
		err = errors.New("name one item, or several with --item or --group")
	case several && !o.self && o.output == "" && o.format != formatOCIArchive:
		err = errors.New("name a directory for the layout with -o")
	case several && o.format == formatDocker:
		err = errors.New("a docker archive has one image: name it")
	case several && o.byteRange != "", o.unchecked && o.byteRange == "":
		err = errors.New("--range needs the name of one file, chart or blob; --unchecked needs --range")
	}
	if err == nil && o.platform != "" {
		o.wanted, err = parsePlatforms([]string{o.platform})
	}
	if err == nil && o.byteRange != "" {
		if o.part, err = parseRange(o.byteRange); err == nil {
			o.part.Unchecked = o.unchecked
		}
	}
	if err != nil {
		return &usage.Error{Err: err}
	}
	return nil
}

func parseRange(text string) (*extract.Range, error) {
	first, last, ok := strings.Cut(text, "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := int64(-1), error(nil)
	if last != "" {
		to, err2 = strconv.ParseInt(last, 10, 64)
	}
	if !ok || err1 != nil || err2 != nil || from < 0 || last != "" && to < from {
		return nil, fmt.Errorf("--range %s: want FIRST-LAST or FIRST-, in bytes", text)
	}
	return &extract.Range{From: from, To: to}, nil
}

func runExtract(ctx context.Context, g *globals, path, name string, o extractOptions) error {
	if err := o.check(name); err != nil {
		return err
	}
	e := &extraction{globals: g, extractOptions: o, bundle: path}
	if o.host != "" {
		return e.forHost(ctx)
	}
	r, err := g.openBundle(path)
	if err != nil {
		return err
	}
	defer r.Close()
	switch e.r = r; {
	case o.self:
		return e.program(ctx)
	case name == "":
		return e.several(ctx)
	}
	if d := digest.Digest(name); d.Validate() == nil {
		return e.blob(ctx, d)
	}
	item, err := extract.Find(r.Index().Items, name, o.wanted)
	if err != nil {
		return err
	}
	if item.Kind == bundle.KindGit && o.format == "" {
		return e.git(ctx, item)
	}
	if item.Kind == bundle.KindImage || o.format != "" {
		return e.image(ctx, item)
	}
	return e.file(ctx, item)
}

// An extraction extracts items of one bundle.
type extraction struct {
	*globals
	extractOptions
	r      *bundle.Reader
	bundle string // its path
}

// program extracts kkbundle's own program.
func (e *extraction) program(ctx context.Context) error {
	wanted := e.wanted
	if len(wanted) == 0 {
		wanted = transfer.Platforms{runtime.GOOS + "/" + runtime.GOARCH}
	}
	var have []string
	for _, it := range e.r.Index().Items {
		if it.Kind != bundle.KindTool || it.Name != manifest.ProgramName {
			continue
		}
		p := bundle.PlatformString(it.Descriptor.Platform)
		if wanted.Has(p) {
			return e.file(ctx, it)
		}
		have = append(have, p)
	}
	if len(have) == 0 {
		return errors.New("the bundle carries no kkbundle: write self: true into the manifest, and build it again")
	}
	return fmt.Errorf("the bundle carries no kkbundle for %s, but for %s: name one with --platform", wanted,
		strings.Join(have, ", "))
}

// image extracts an item as a layout or an archive.
func (e *extraction) image(ctx context.Context, item bundle.Item) error {
	if e.byteRange != "" {
		return usage.Errorf("--range needs a file, chart or blob: name a blob of the image by its digest")
	}
	if len(e.wanted) > 0 || e.format == formatDocker {
		wanted := e.wanted.Has
		if len(e.wanted) == 0 {
			wanted = nil
		}
		one, err := e.r.ForPlatform(ctx, item, wanted)
		if err != nil {
			return err
		}
		item = one
	}
	base := extract.PlainName(strings.NewReplacer(":", "-", "@", "-").Replace(item.Ref))
	switch e.format {
	case formatOCIArchive:
		return e.archive(base+".tar", 1,
			func(w io.Writer) error { return ocilayout.Archive(ctx, w, e.r, []bundle.Item{item}) })
	case formatDocker:
		return e.archive(base+".tar", 1, func(w io.Writer) error { return ocilayout.DockerArchive(ctx, w, e.r, item) })
	case formatTree:
		return usage.Errorf("a tree has several items: name them with --item")
	}
	e.output = cmp.Or(e.output, base)
	return e.layout(ctx, []bundle.Item{item})
}

func (e *extraction) layout(ctx context.Context, items []bundle.Item) error {
	if e.output == "-" {
		return usage.Errorf("a layout is a directory and cannot go to standard output: name one with -o, or use --format oci-archive")
	}
	if err := e.overwrite.directory(e.output, "blobs"); err != nil {
		return err
	}
	if err := ocilayout.Extract(ctx, e.r, e.output, items); err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s as an OCI image layout",
		plain.Count(len(items), "item"))
}

// git extracts a Git repository as a bare repository.
func (e *extraction) git(ctx context.Context, item bundle.Item) error {
	if e.byteRange != "" || e.output == "-" {
		return usage.Errorf("a Git repository becomes a directory: name one with -o, and leave out --range")
	}
	e.output = cmp.Or(e.output, extract.GitName(item))
	if err := e.overwrite.directory(e.output, extract.UnfinishedGit()...); err != nil {
		return err
	}
	if err := extract.Git(ctx, e.r, e.output, item); err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: 1}, "a bare Git repository")
}

// archive writes an archive to a file or standard output.
func (e *extraction) archive(name string, items int, write func(io.Writer) error) error {
	if e.output == "-" {
		return write(e.Out)
	}
	if err := e.writeTo(name); err != nil {
		return err
	}
	if err := disk.WriteFileWith(e.output, 0o644, write); err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: items}, "%s as an archive",
		plain.Count(items, "item"))
}

// writeTo sets the file to write, if there is no -o. A file that exists stays without --force, also where the name is
// the bundle's choice.
func (e *extraction) writeTo(name string) error {
	e.output = cmp.Or(e.output, name)
	return e.overwrite.file(e.output)
}

// done prints the result.
func (e *extraction) done(r extractResult, format string, args ...any) error {
	if e.JSON {
		return e.PrintJSON(r)
	}
	e.Note("%s: %s", r.Path, fmt.Sprintf(format, args...))
	return nil
}

// file writes the content of a file or chart.
func (e *extraction) file(ctx context.Context, item bundle.Item) error {
	layer, err := e.r.ContentOf(ctx, item)
	if err != nil {
		return err
	}
	if e.byteRange == "" || e.output != "" {
		if err := e.writeTo(extract.FileName(item)); err != nil {
			return err
		}
	}
	return e.content(ctx, layer)
}

// blob writes a blob.
func (e *extraction) blob(ctx context.Context, d digest.Digest) error {
	size, ok := e.r.Stat(d)
	if !ok {
		return fmt.Errorf("the bundle has no blob %s", d)
	}
	if e.format != "" {
		return usage.Errorf("--format is for images, and a digest names a blob: name the image by its reference")
	}
	if e.output != "" {
		if err := e.writeTo(e.output); err != nil {
			return err
		}
	}
	return e.content(ctx, ocispec.Descriptor{Digest: d, Size: size})
}

// content writes a blob, or a range of it, to -o or standard output.
func (e *extraction) content(ctx context.Context, d ocispec.Descriptor) error {
	content, length, err := extract.Content(ctx, e.r, d, e.part)
	if err != nil {
		return err
	}
	defer content.Close()
	if e.output == "" || e.output == "-" {
		_, err := io.Copy(e.Out, content)
		return err
	}
	if err := disk.WriteFile(e.output, extract.FileMode(d), content); err != nil {
		return err
	}
	return e.done(extractResult{1, e.output, d.Digest, d.Size, 1}, "%s, %s", plain.Size(length), d.Digest)
}

// several extracts all items or those of --item.
func (e *extraction) several(ctx context.Context) error {
	of, err := e.group.of(e.r.Index())
	if err != nil {
		return err
	}
	items, err := extract.Select(ctx, e.r, of, e.items, e.wanted)
	if err != nil {
		return err
	}
	format := e.format
	if format == "" {
		format = formatOCI
		if len(e.items)+len(e.group.names) > 0 {
			format = formatTree
		}
	}
	switch format {
	case formatOCIArchive:
		x := e.r.Index()
		name := strings.TrimSuffix(bundle.FileName(x.Name, x.Version), ".kkb")
		return e.archive(extract.PlainName(name)+".tar", len(items),
			func(w io.Writer) error { return ocilayout.Archive(ctx, w, e.r, items) })
	case formatTree:
		return e.tree(ctx, items)
	}
	return e.layout(ctx, items)
}

func (e *extraction) tree(ctx context.Context, items []bundle.Item) error {
	if e.output == "-" {
		return usage.Errorf("a tree is a directory and cannot go to standard output: name one with -o")
	}
	if err := e.overwrite.directory(e.output); err != nil {
		return err
	}
	if err := extract.Tree(ctx, e.r, e.output, items); err != nil {
		return err
	}
	if extract.HasPackages(items) {
		s, err := serve.New(ctx, serve.Options{Bundles: []string{e.bundle}, Logger: e.Logger(), Open: e.openBundle})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := extract.Repositories(ctx, s, e.output, items); err != nil {
			return err
		}
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s", plain.Count(len(items), "item"))
}

// forHost extracts the items of one host: files, and images as archives for one platform.
func (e *extraction) forHost(ctx context.Context) (err error) {
	if e.output == "" || e.output == "-" {
		return usage.Errorf("name a directory with -o")
	}
	if err := e.overwrite.directory(e.output); err != nil {
		return err
	}
	s, err := e.openSite(ctx, site.Flags{InventoryFile: e.inventory, ClusterFile: e.cluster}, e.bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e.r = s.Bundle
	h, err := hostNamed(s.Inventory, e.host)
	if err != nil {
		return err
	}
	platform, err := e.hostPlatform()
	if err != nil {
		return err
	}
	items, err := e.needs(ctx, s.Cluster, h.Roles, platform)
	if err != nil {
		return err
	}
	if err := extract.Files(ctx, e.r, e.output, items); err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s for %s (%s)",
		plain.Count(len(items), "item"), h.Name, platform)
}

// hostPlatform returns --platform, or the only platform of the bundle.
func (e *extraction) hostPlatform() (string, error) {
	if len(e.wanted) > 0 {
		return e.wanted[0], nil
	}
	if p := e.r.Index().Platforms; len(p) == 1 {
		return p[0], nil
	}
	return "", usage.Errorf("give the platform of %s with --platform: the bundle is for %s", e.host,
		strings.Join(e.r.Index().Platforms, ", "))
}

// needs returns the items for hosts with these roles. The error lists all missing items.
func (e *extraction) needs(ctx context.Context, c *manifest.Cluster, roles []manifest.Role,
	platform string,
) ([]bundle.Item, error) {
	var items []bundle.Item
	var errs []error
	for _, need := range plan.NeedsOf(c, roles) {
		refs, err := catalog.Refs(c, need, platform)
		errs = append(errs, err)
		for _, ref := range refs {
			it, err := task.FindItem(e.r, c, need, ref, platform)
			if err == nil {
				it, err = e.narrow(ctx, it, platform)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			items = append(items, it)
		}
	}
	return items, errors.Join(errs...)
}

// narrow returns an item; of an image only the platform.
func (e *extraction) narrow(ctx context.Context, it bundle.Item, platform string) (bundle.Item, error) {
	if it.Kind == bundle.KindImage {
		return e.r.ForPlatform(ctx, it, transfer.Platforms{platform}.Has)
	}
	return it, nil
}

func hostNamed(inv *manifest.Inventory, name string) (manifest.Host, error) {
	var names []string
	for _, h := range inv.Hosts() {
		if h.Name == name {
			return h, nil
		}
		names = append(names, h.Name)
	}
	return manifest.Host{}, usage.Errorf("--for %s: the inventory has %s", name, strings.Join(names, ", "))
}
