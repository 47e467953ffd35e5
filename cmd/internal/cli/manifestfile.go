package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// defaultManifest is the manifest's name in a directory, as init writes it.
const defaultManifest = "manifest.yaml"

// manifestFile returns the manifest that the optional argument means: a file, or that of a directory, the current one
// by default. In a directory it is manifest.yaml, else the only manifest.
func manifestFile(args []string) (string, error) {
	dir := "."
	if len(args) > 0 {
		dir = args[0]
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return dir, nil
		}
	}
	if file := filepath.Join(dir, defaultManifest); exists(file) {
		return file, nil
	}
	files, err := ourFiles(dir, manifest.KindBundle)
	if err != nil {
		return "", err
	}
	switch len(files) {
	case 1:
		return files[0], nil
	case 0:
		return "", &builder.InputError{Err: fmt.Errorf(
			"%s has no manifest: name a manifest, or write one with kkbundle init", shownDir(dir))}
	}
	return "", &builder.InputError{Err: fmt.Errorf("%s has %d manifests: name one of %s", shownDir(dir), len(files),
		plain.Line(strings.Join(files, ", ")))}
}

func shownDir(dir string) string {
	if dir == "." {
		return "the current directory"
	}
	return plain.Line(dir)
}
