package cli_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// standIns CLUSTER puts something of the right form where upstream has what a cluster needs, with checksums: images
// into the source registry below the name of their registry, files and flannel's chart on the file server below that
// of their host.
func standIns(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stand-ins CLUSTER")
	}
	c, err := manifest.ParseCluster(args[0], []byte(ts.ReadFile(args[0])))
	ts.Check(err)
	c = c.WithDefaults()
	more, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: []string{"linux/amd64", "linux/arm64"}})
	ts.Check(err)
	u := of(ts)
	for _, image := range more.Images {
		ref, err := image.Ref()
		ts.Check(err)
		ts.Check(u.copyImage("hub/library/app:1.0", ref))
	}
	sums := map[string]string{}
	for _, f := range more.Files {
		for _, platform := range []string{"linux/amd64", "linux/arm64"} {
			at := manifest.FileURL(f, platform)
			u.files.put(onServer(ts, at), []byte(at))
			if f.Checksums != "" {
				sums[onServer(ts, scalar.Expand(f.Checksums, platform))] += fmt.Sprintf("%x  %s\n",
					sha256.Sum256([]byte(at)), path.Base(at))
			}
		}
	}
	for at, text := range sums {
		u.files.put(at, []byte(text))
	}
	archive, err := flannelChart(ts.MkAbs(".flannel"))
	ts.Check(err)
	for _, chart := range more.Charts {
		u.files.put(onServer(ts, chart.URL), archive)
	}
}

// aptSuite is the command apt-suite NAME[:DEPENDENCY]..., which puts a signed repository with packages of these names
// for amd64 onto the file server, below apt, and its keys beside the script.
func aptSuite(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < 1 {
			ts.Fatalf("usage: apt-suite NAME[:DEPENDENCY]...")
		}
		now := time.Now()
		suite := packagestest.Suite{
			Name: "site", Archs: []string{"all", "amd64"}, Date: now.Add(-time.Minute),
			Until: now.Add(time.Hour),
		}
		for _, arg := range args {
			name, needs, _ := strings.Cut(arg, ":")
			one := packagestest.Deb{Name: name, Version: "1.0", Arch: "amd64", Files: file("usr/share/kk/" + name)}
			if needs != "" {
				one.Fields = "Depends: " + needs + "\n"
			}
			suite.Debs = append(suite.Debs, one)
		}
		key := packagestest.NewKey(t, now.Add(-time.Hour), 0)
		dir := ts.MkAbs(".apt")
		suite.Write(t, dir, key)
		packagestest.WriteFile(t, ts.MkAbs("keys.gpg"), key.Public(t))
		ts.Check(fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(filepath.Join(dir, name))
			of(ts).files.put("/apt/"+name, data)
			return err
		}))
	}
}

// onServer is where the file server has a file of another host.
func onServer(ts *testscript.TestScript, address string) string {
	u, err := url.Parse(address)
	ts.Check(err)
	return "/" + u.Host + u.Path
}

func (u *upstream) copyImage(from, to string) error {
	repo, desc, options, err := u.find(from)
	if err != nil {
		return err
	}
	idx, err := remote.Index(repo.Digest(desc.Digest.String()), options...)
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(u.source.Host + "/" + to)
	if err != nil {
		return err
	}
	return remote.WriteIndex(ref, idx, options...)
}

// flannelChart takes the images out of the values that install writes.
func flannelChart(dir string) ([]byte, error) {
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: flannel}
spec:
  initContainers: [{name: i, image: "{{ .Values.flannel.image_cni.repository }}:{{ .Values.flannel.image_cni.tag }}"}]
  containers: [{name: c, image: "{{ .Values.flannel.image.repository }}:{{ .Values.flannel.image.tag }}"}]
`
	for file, text := range map[string]string{
		"Chart.yaml":         "apiVersion: v2\nname: flannel\nversion: v0.28.4\n",
		"templates/pod.yaml": pod,
	} {
		at := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	c, err := charts.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = c.Archive(&b)
	return b.Bytes(), errors.Join(err, os.RemoveAll(dir))
}

// without LOCK REF takes a pin out of a lock.
func without(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: without LOCK REF")
	}
	l, err := manifest.ParseLock(args[0], []byte(ts.ReadFile(args[0])))
	ts.Check(err)
	before := len(l.Items)
	l.Items = slices.DeleteFunc(l.Items, func(p manifest.Pin) bool { return p.Ref == args[1] })
	if len(l.Items) == before {
		ts.Fatalf("%s has no %s", args[0], args[1])
	}
	data, err := l.Marshal()
	ts.Check(errors.Join(err, os.WriteFile(ts.MkAbs(args[0]), data, 0o600)))
}

// missingEach MANIFEST EXTRA... takes each pin out of the manifest's lock in turn, and wants build to fail and to say
// that this one is missing and who needs it; and of each image a platform. What nobody needs is named by EXTRA.
func missingEach(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: missing-each MANIFEST EXTRA...")
	}
	file := ts.MkAbs(strings.TrimSuffix(args[0], ".yaml") + ".lock.yaml")
	data, err := os.ReadFile(file)
	ts.Check(err)
	l, err := manifest.ParseLock(file, data)
	ts.Check(err)
	defer func() { ts.Check(os.WriteFile(file, data, 0o600)) }()
	without := func(pin manifest.Pin, left []manifest.Pin, what string) {
		some := *l
		some.Items = left
		text, err := some.Marshal()
		ts.Check(errors.Join(err, os.WriteFile(file, text, 0o600)))
		extra := slices.Contains(args[1:], pin.Ref)
		err = ts.Exec("kkbundle", "build", "--locked", "-o", "partial.kkb", args[0])
		var failed *exec.ExitError
		switch {
		case extra && err != nil:
			ts.Fatalf("without %s, which nobody needs: %v", pin.Ref, err)
		case extra:
			return
		case !errors.As(err, &failed) || failed.ExitCode() != 21:
			ts.Fatalf("without %s: %v, want exit code 21", pin.Ref, err)
		}
		about := false
		for line := range strings.Lines(ts.ReadFile("stderr")) {
			if _, text, ok := strings.Cut(strings.TrimPrefix(line, "  "), what); ok &&
				strings.HasPrefix(text, " is missing: ") && strings.Contains(text, " needs it") {
				about = true
			}
		}
		if !about {
			ts.Fatalf("without %s, it is not said who needs %q", pin.Ref, what)
		}
	}
	for i, pin := range l.Items {
		what := pin.Kind + " " + pin.Ref
		if pin.Kind == manifest.ItemFile {
			what += " for " + pin.Platform
		}
		if pin.Kind == manifest.ItemChart && pin.Name == "app" {
			what = "chart app" // an addon names the chart, not where it is from
		}
		without(pin, slices.Delete(slices.Clone(l.Items), i, i+1), what)
		if len(pin.Platforms) < 2 {
			continue
		}
		left := slices.Clone(l.Items)
		left[i].Platforms = []string{"linux/amd64"}
		without(pin, left, what+" for linux/arm64")
	}
}
