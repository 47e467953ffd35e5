package cli

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
)

// listedFlags list a bundle's items on the command line, in place of a manifest.
type listedFlags struct {
	images, charts, platforms []string
	name, version             string
	chartFlag                 string // of charts, "" for --chart
}

func (f *listedFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.images, "image", nil, "without a manifest: an image, as in `nginx:1.29` (repeated)")
	fs.StringArrayVar(&f.charts, "chart", nil,
		"without a manifest: a `chart`, oci://HOST/PATH/NAME[:VERSION], https://REPOSITORY/NAME[:VERSION], https://….tgz or a path (repeated)")
	fs.StringSliceVar(&f.platforms, "platform", nil, "of --image and --chart (default linux/"+runtime.GOARCH+")")
	fs.StringVar(&f.name, "name", "", "of the bundle of --image and --chart (default that of the output)")
	fs.StringVar(&f.version, "version", "0.1.0", "of the bundle of --image and --chart")
}

// set reports whether items are listed.
func (f *listedFlags) set() bool { return len(f.images)+len(f.charts) > 0 }

// checkUnset refuses flags that only describe listed items.
func (f *listedFlags) checkUnset(fs *pflag.FlagSet) error {
	for _, flag := range []string{"platform", "name", "version"} {
		if fs.Changed(flag) {
			return usage.Errorf("--%s goes with --image and --chart: a manifest has its own", flag)
		}
	}
	return nil
}

// project makes a project of the listed items. output is the file of the bundle, or "".
func (f *listedFlags) project(output string) (*builder.Project, error) {
	b := manifest.Bundle{
		Metadata:  manifest.Metadata{Name: cmp.Or(f.name, nameOfBundle(output)), Version: f.version},
		Platforms: f.platforms,
	}
	if b.Metadata.Name == "" {
		return nil, usage.Errorf("name the bundle to write: -o FILE, or --name NAME for NAME-VERSION.kkb")
	}
	if len(b.Platforms) == 0 {
		b.Platforms = []string{"linux/" + runtime.GOARCH}
	}
	for _, ref := range f.images {
		b.Images = append(b.Images, manifest.Image{Name: ref})
	}
	for _, text := range f.charts {
		c, err := listedChart(cmp.Or(f.chartFlag, "--chart"), text)
		if err != nil {
			return nil, err
		}
		b.Charts = append(b.Charts, c)
	}
	return builder.Of(b)
}

// nameOfBundle returns the name in the name of a bundle's file; "" if there is none.
func nameOfBundle(output string) string {
	if output == "" || output == standardStream {
		return ""
	}
	name := strings.TrimSuffix(filepath.Base(output), ".age")
	return strings.ToLower(strings.TrimSuffix(name, bundleSuffix))
}

// listedChart reads a chart of a flag. The last part of an address is the chart's name, as in helm pull.
func listedChart(flag, text string) (manifest.Chart, error) {
	isOCI := strings.HasPrefix(text, "oci://")
	switch {
	case !isOCI && !strings.HasPrefix(text, "https://") && !strings.HasPrefix(text, "http://"):
		if _, err := os.Stat(text); err != nil {
			return manifest.Chart{}, usage.Errorf("%s %s: no such file or directory; a chart of a repository is https://REPOSITORY/NAME[:VERSION] or oci://HOST/PATH/NAME[:VERSION]", flag, text)
		}
		return manifest.Chart{Path: text}, nil
	case !isOCI && strings.HasSuffix(text, ".tgz"):
		return manifest.Chart{URL: text}, nil
	}
	repo, last := path.Split(text)
	name, version, _ := strings.Cut(last, ":")
	if repo = strings.TrimRight(repo, "/"); name == "" || strings.HasSuffix(repo, ":") {
		return manifest.Chart{}, usage.Errorf("%s %s: want the chart's name at the end, https://REPOSITORY/NAME[:VERSION] or oci://HOST/PATH/NAME[:VERSION]", flag, text)
	}
	return manifest.Chart{Repo: repo, Name: name, Version: version}, nil
}
