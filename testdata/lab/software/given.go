package software

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
)

// GivenSources returns what a given file's Go programs were built from: the file's name, which has the release, and
// the module and commit that Go's linker wrote into each program. The file is a program or an archive (.tgz, .tar.gz).
// Other content, as charts and programs in C, gives nothing.
func GivenSources(url string) (sources []string, err error) {
	file, _, err := Given(url)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("given file: %w", err)
	}
	defer f.Close()
	name := path.Base(url)
	if !strings.HasSuffix(name, ".tgz") && !strings.HasSuffix(name, ".tar.gz") {
		return sourceOf(name, f), nil
	}
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("given file %s: %w", file, err)
	}
	members := tar.NewReader(unzipped)
	for {
		member, err := members.Next()
		if errors.Is(err, io.EOF) {
			return slices.Compact(sources), nil
		}
		if err != nil {
			return nil, fmt.Errorf("given file %s: %w", file, err)
		}
		if member.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(members)
		if err != nil {
			return nil, fmt.Errorf("given file %s: %s: %w", file, member.Name, err)
		}
		sources = append(sources, sourceOf(name, bytes.NewReader(data))...)
	}
}

func sourceOf(name string, program io.ReaderAt) []string {
	info, err := buildinfo.Read(program)
	if err != nil { // no program in Go: it has no error of its own for that
		return nil
	}
	const enough = 12 // digits
	commit := settingOf(info, "vcs.revision")
	commit = commit[:min(len(commit), enough)]
	switch {
	case commit == "":
		commit = "an unknown commit"
	case settingOf(info, "vcs.modified") == "true":
		commit += " with changes"
	}
	return []string{name + " from " + info.Main.Path + " at " + commit}
}

func settingOf(info *debug.BuildInfo, key string) string {
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == key })
	if i < 0 {
		return ""
	}
	return info.Settings[i].Value
}
