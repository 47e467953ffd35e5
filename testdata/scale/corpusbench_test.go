//go:build linux

package scale

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// corpusRuns is how often each row is measured; the table has the fastest and the middle one.
const corpusRuns = 5

// TestCorpus prints the corpus table of docs/reference/performance.md: about 20 images, 700 MB of gzip layers made of
// Debian packages, from loopback, beside what the same bytes cost without kkbundle. Upstream and registry are in this
// process and not counted. Files are on a memory file system first, where nothing waits for a disk, and then on the
// disk of $TMPDIR.
func TestCorpus(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench-corpus runs it")
	}
	c := loadCorpus(t)
	var content int64
	for _, d := range c.blobs() {
		content += d.Size
	}
	t.Logf("%d images, %d layers, %s", len(c.Images), len(c.blobs()), gb(content))
	if dir, ok := memoryDir(t, 6*content); ok {
		c.measure(t, "in memory", dir)
	}
	c.measure(t, "on disk, synced", t.TempDir())
}

// memoryDir is a directory on a memory file system with room, if there is one.
func memoryDir(t *testing.T, room int64) (string, bool) {
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || int64(fs.Bavail)*fs.Bsize < room {
		t.Log("/dev/shm has too little room: measured on disk only")
		return "", false
	}
	dir, err := os.MkdirTemp("/dev/shm", "kkbundle-bench-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

// A corpusRow is one line of the table.
type corpusRow struct {
	name    string
	prepare func()
	run     func() usage
}

func (c *corpus) measure(t *testing.T, where, dir string) {
	host := c.serve(t)
	cache, output, copied := filepath.Join(dir, "cache"), filepath.Join(dir, "corpus.kkb"), filepath.Join(dir, "copy")
	last := c.Images[len(c.Images)-1].Name
	all, fewer := c.manifest(t, host), c.manifest(t, host, last)
	command := func(manifest string) []string {
		return []string{program(t), "build", "--quiet", "--cache", cache, "-o", output, manifest}
	}
	remove := func(paths ...string) {
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	build := func() usage { return must(t, "", command(all)...) }
	plainly := func(upload func(host string) error) func() usage {
		return func() usage {
			r := registrytest.Start(t, registrytest.Options{Dir: filepath.Join(dir, "registry-plain")})
			defer remove(filepath.Join(dir, "registry-plain"))
			return timed(t, func() error { return upload(r.Host) })
		}
	}
	far := gigabit().To(t, host)
	overLine := c.manifest(t, far)
	var destination *registrytest.Server
	rows := []corpusRow{
		{
			"fetch and hash, nothing written", func() {},
			func() usage { return timed(t, func() error { return c.fetch(host, "") }) },
		},
		{
			"fetch, hash and write", func() { remove(copied) },
			func() usage { return timed(t, func() error { return c.fetch(host, copied) }) },
		},
		{"**build**, nothing cached", func() { remove(cache, output, copied) }, build},
		{
			"copy the bundle with a CRC", func() { remove(copied) },
			func() usage { return timed(t, func() error { return copyFile(output, copied) }) },
		},
		{"**build**, unchanged", func() { remove(output, copied) }, build}, // as the copy, which replaces no file
		{"**build**, one image new", func() {
			remove(cache)
			must(t, "", command(fewer)...)
		}, build},
		{"**build --no-cache**", func() { remove(output) }, func() usage {
			return must(t, "", program(t), "build", "--quiet", "--no-cache", "-o", output, all)
		}},
		{
			"over a line of 1 Gbit/s and 20 ms: fetch and hash, nothing written", func() {},
			func() usage { return timed(t, func() error { return c.fetch(far, "") }) },
		},
		{
			"the same line: **build**, nothing cached", func() { remove(cache, output, copied) },
			func() usage { return must(t, "", command(overLine)...) },
		},
		{"the same line: **build --no-cache**", func() { remove(output) }, func() usage {
			return must(t, "", program(t), "build", "--quiet", "--no-cache", "-o", output, overLine)
		}},
		{"**verify**", func() {}, func() usage { return must(t, "", program(t), "verify", "--quiet", output) }},
		{"plain parallel PUTs of the layers", func() {}, plainly(c.putLayers)},
		{"plain parallel PUTs of layers, configurations and manifests", func() {}, plainly(c.putImages)},
		{"**push** to an empty registry", func() {
			remove(filepath.Join(dir, "registry"))
			destination = registrytest.Start(t, registrytest.Options{Dir: filepath.Join(dir, "registry")})
		}, func() usage {
			return must(t, "", program(t), "push", "--quiet", "--plain-http", "--registry", destination.Host, output)
		}},
		{"**push** again", func() {}, func() usage {
			return must(t, "", program(t), "push", "--quiet", "--plain-http", "--registry", destination.Host, output)
		}},
	}
	var table strings.Builder
	table.WriteString("| " + where +
		" | fastest | median | CPU | peak memory | read | written |\n|---|---|---|---|---|---|---|\n")
	for _, row := range rows {
		var runs []usage
		for range corpusRuns {
			row.prepare()
			runs = append(runs, row.run())
		}
		slices.SortFunc(runs, func(a, b usage) int { return int(a.Wall - b.Wall) })
		best, middle := runs[0], runs[len(runs)/2]
		own := "| | | | |"
		if best.Status != "" {
			own = fmt.Sprintf("| %.2f s | %d MiB | %s | %s |", middle.CPU.Seconds(), middle.Peak/mib, gb(middle.Read),
				gb(middle.Wrote))
		}
		fmt.Fprintf(&table, "| %s | %.2f s | %.2f s %s\n", row.name, best.Wall.Seconds(), middle.Wall.Seconds(), own)
	}
	t.Logf("\n%s", table.String())
}

// timed measures something in this process: its servers' processor time is in it, so only the wall clock counts.
func timed(t *testing.T, f func() error) usage {
	t.Helper()
	start := time.Now()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return usage{Wall: time.Since(start)}
}

// transfers is the number of kkbundle's transfers at a time.
const transfers = 8

// parallel calls f for every layer.
func (c *corpus) parallel(f func(ocispec.Descriptor) error) error {
	var g errgroup.Group
	g.SetLimit(transfers)
	for _, d := range c.blobs() {
		g.Go(func() error { return f(d) })
	}
	return g.Wait()
}

// fetch is what nobody can do without: every layer is read and hashed once. With a directory it is written there and
// synced.
func (c *corpus) fetch(host, dir string) error {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return c.parallel(func(d ocispec.Descriptor) (err error) {
		response, err := http.Get("http://" + host + "/v2/any/blobs/" + d.Digest.String())
		if err != nil {
			return err
		}
		defer response.Body.Close()
		hash := sha256.New()
		to := io.Writer(hash)
		if dir != "" {
			f, err := os.Create(filepath.Join(dir, d.Digest.Encoded()))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
			to = io.MultiWriter(hash, f)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{to}, response.Body, make([]byte, mib)); err != nil {
			return err
		}
		if digest.NewDigest(digest.SHA256, hash) != d.Digest {
			return errors.New("other content came")
		}
		return nil
	})
}

// putLayers uploads every layer.
func (c *corpus) putLayers(host string) error {
	return c.parallel(func(d ocispec.Descriptor) error { return c.putBlob(host, d) })
}

// putImages uploads every layer, then every configuration and manifest with its tag: all that a registry needs for
// the images.
func (c *corpus) putImages(host string) error {
	if err := c.putLayers(host); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(transfers)
	for _, image := range c.Images {
		g.Go(func() error {
			data, err := os.ReadFile(c.blob(image.Manifest.Digest))
			if err != nil {
				return err
			}
			var m ocispec.Manifest
			if err := json.Unmarshal(data, &m); err != nil {
				return err
			}
			if err := c.putBlob(host, m.Config); err != nil {
				return err
			}
			return put("http://"+host+"/v2/plain/manifests/"+image.Name, m.MediaType, bytes.NewReader(data),
				int64(len(data)))
		})
	}
	return g.Wait()
}

// putBlob uploads a blob with one POST and one PUT.
func (c *corpus) putBlob(host string, d ocispec.Descriptor) error {
	response, err := http.Post("http://"+host+"/v2/plain/blobs/uploads/", "", bytes.NewReader(nil))
	if err != nil {
		return err
	}
	response.Body.Close()
	f, err := os.Open(c.blob(d.Digest))
	if err != nil {
		return err
	}
	defer f.Close()
	place, err := response.Location()
	if err != nil {
		return err
	}
	query := place.Query()
	query.Set("digest", d.Digest.String())
	place.RawQuery = query.Encode()
	return put(place.String(), "application/octet-stream", f, d.Size)
}

func put(url, mediaType string, body io.Reader, size int64) error {
	request, err := http.NewRequest(http.MethodPut, url, body)
	if err != nil {
		return err
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", mediaType)
	done, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer done.Body.Close()
	if done.StatusCode != http.StatusCreated {
		return fmt.Errorf("PUT %s: %s", url, done.Status)
	}
	return nil
}

// copyFile copies a file and takes a checksum on the way, as assembling a bundle out of cached frames does.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Sync(), out.Close()) }()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(out, sum)}, struct{ io.Reader }{in}, make([]byte, mib))
	return err
}
