package regzip_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"

	"github.com/kkbundle/kkbundle/bundle/regzip"
)

// A maker is a program or library that makes gzip streams, as something that builds images uses it.
type maker struct {
	name   string // as docs/site/updates.md has it
	levels []int
	needs  string // the program that must be here; "" for a library
	pack   func(ctx context.Context, content []byte, level int) ([]byte, error)
}

// makers returns the encoders of the table in docs/site/updates.md.
func makers() []maker {
	every, usual := []int{1, 6, 9}, []int{6}
	library := func(open func(w io.Writer, level int) (io.WriteCloser, error)) func(context.Context, []byte,
		int) ([]byte, error) {
		return func(_ context.Context, content []byte, level int) ([]byte, error) {
			var out bytes.Buffer
			w, err := open(&out, level)
			if err != nil {
				return nil, err
			}
			_, err = w.Write(content)
			err = errors.Join(err, w.Close())
			return out.Bytes(), err
		}
	}
	return []maker{
		{
			"Go's compress/gzip", every, "",
			library(func(w io.Writer, level int) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, level) }),
		},
		{
			"klauspost/compress", every, "",
			library(func(w io.Writer, level int) (io.WriteCloser, error) { return kgzip.NewWriterLevel(w, level) }),
		},
		{"GNU gzip", every, "gzip", command("gzip", "-nc", "-LEVEL")},
		{"zlib, as Python has it", every, "python3", command("python3", "-c", pythonGzip, "LEVEL")},
		{
			"Python's tarfile, as rules_pkg of Bazel uses it", every, "python3",
			command("python3", "-c", pythonTar, "LEVEL"),
		},
		{
			"Java's GZIPOutputStream, as Jib uses it", usual, "javac",
			command("java", filepath.Join("testdata", "Gzip.java")),
		},
		{"pigz, two threads or more", every, "pigz", command("pigz", "-nc", "-p", "2", "-LEVEL")},
		{"pigz, one thread, levels 6 and 9", []int{6, 9}, "pigz", command("pigz", "-nc", "-p", "1", "-LEVEL")},
		{"pigz, one thread, level 1", []int{1}, "pigz", command("pigz", "-nc", "-p", "1", "-LEVEL")},
		{"pigz, `--independent`", usual, "pigz", command("pigz", "-nc", "-i", "-p", "2", "-LEVEL")},
		{"busybox gzip as Debian builds it", every, "busybox", command("busybox", "gzip", "-c", "-LEVEL")},
	}
}

// pythonTar writes in blocks of a tar file.
const pythonTar = `
import gzip, sys
with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=int(sys.argv[1]), mtime=0) as f:
    while block := sys.stdin.buffer.read(10240):
        f.write(block)
`

// command compresses with a program. LEVEL in its arguments becomes the level.
func command(args ...string) func(context.Context, []byte, int) ([]byte, error) {
	return func(ctx context.Context, content []byte, level int) ([]byte, error) {
		filled := make([]string, len(args))
		for i, a := range args {
			filled[i] = strings.ReplaceAll(a, "LEVEL", strconv.Itoa(level))
		}
		cmd := exec.CommandContext(ctx, filled[0], filled[1:]...)
		cmd.Stdin = bytes.NewReader(content)
		return cmd.Output()
	}
}

// layerLike returns contents like those of layers: a program, here that of the test, and the samples that tell levels
// apart.
func layerLike(t *testing.T) map[string][]byte {
	t.Helper()
	path, err := os.Executable()
	check(t, err)
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	program, err := io.ReadAll(io.LimitReader(f, 1<<20))
	check(t, err)
	all := samples()
	return map[string][]byte{
		"program": program, "text": all["text"], "mixed": all["mixed"],
		"parts": all["block"][:256<<10], "empty": nil, "byte": {7},
	}
}

// TestCoverageOfEncoders measures which streams of other programs are made again, and compares with the table in
// docs/site/updates.md. No stream may be identified and made differently.
func TestCoverageOfEncoders(t *testing.T) {
	if os.Getenv("KKBUNDLE_BIG") != "1" {
		t.Skip("a measurement of all encoders, of minutes: make encoders")
	}
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "site", "updates.md"))
	check(t, err)
	contents := layerLike(t)
	for _, m := range makers() {
		t.Run(m.name, func(t *testing.T) {
			if m.needs != "" {
				if _, err := exec.LookPath(m.needs); err != nil {
					t.Skipf("no program %s here: its streams are not measured", m.needs)
				}
			}
			var all, known, streams, exact int
			for name, content := range contents {
				for _, level := range m.levels {
					packed, err := m.pack(t.Context(), content, level)
					check(t, err)
					streams, all = streams+1, all+len(packed)
					r, _, ok, err := regzip.Identify(t.Context(), opener(packed))
					check(t, err)
					if !ok {
						t.Logf("level %d of %s: unknown", level, name)
						continue
					}
					identifiedAgain(t, r, content, packed)
					exact, known = exact+1, known+len(packed)
				}
			}
			t.Logf("%d of %d streams, %d of %d bytes", exact, streams, known, all)
			if row := fmt.Sprintf("| %s | %s |", m.name, share(known, all)); !strings.Contains(string(docs), row) {
				t.Errorf("docs/site/updates.md: the row must begin with: %s", row)
			}
		})
	}
}

// share returns a share for the table: small streams, which most encoders make alike, do not count.
func share(known, all int) string {
	switch {
	case known == all:
		return "all"
	case known < all/100:
		return "none"
	}
	return fmt.Sprintf("%d %%", known*100/all)
}
