package regzip_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestStreamsOfReleasedLibrariesAreIdentified builds a program with each release of klauspost/compress and with pgzip
// 1.2.6, as podman, buildah and skopeo link them, and identifies the streams of the program. KKBUNDLE_KLAUSPOST names
// other releases.
func TestStreamsOfReleasedLibrariesAreIdentified(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program for each release, which the Go module proxy must have")
	}
	releases := []string{"1.17.11", "1.20.3"}
	if text := os.Getenv("KKBUNDLE_KLAUSPOST"); text != "" {
		releases = strings.Fields(text)
	}
	content := samples()["text"]
	for _, release := range releases {
		program := buildEncoder(t, release)
		for _, format := range []string{"gzip", "pgzip"} {
			for level := -1; level <= 9; level++ {
				if level == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s of %s, level %d", format, release, level), func(t *testing.T) {
					cmd := exec.CommandContext(t.Context(), program, format, strconv.Itoa(level))
					cmd.Stdin = bytes.NewReader(content)
					packed, err := cmd.Output()
					check(t, err)
					generation, _, _ := strings.Cut(string(identified(t, packed, content)), "/")
					t.Logf("%d bytes: %s", len(packed), generation)
				})
			}
		}
	}
}

// buildEncoder builds testdata/encoder with a release of klauspost/compress.
func buildEncoder(t *testing.T, release string) (program string) {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile(filepath.Join("testdata", "encoder", "main.go"))
	check(t, err)
	module := "module encoder\n\ngo 1.25\n\nrequire (\n\tgithub.com/klauspost/compress v" + release +
		"\n\tgithub.com/klauspost/pgzip v1.2.6\n)\n"
	check(t, errors.Join(os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600),
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o600)))
	program = filepath.Join(dir, "encoder")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", program, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build with klauspost/compress %s: %v\n%s", release, err, out)
	}
	return program
}
