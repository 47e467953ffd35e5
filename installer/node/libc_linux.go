package node

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// libc finds the C library and its dynamic loaders. Only getconf and ldd name the version: the library's own file
// does not have one place on all distributions.
func (c softwareCollector) libc(ctx context.Context) {
	l := &c.facts.Libc
	for _, pattern := range []string{"/lib/ld*.so.*", "/lib64/ld*.so.*"} {
		found, err := filepath.Glob(c.path(pattern))
		c.problem(pattern, err)
		for _, file := range found[:min(len(found), maxEntries)] {
			if _, err := os.Stat(file); err != nil {
				continue // a link to nothing
			}
			l.Loaders = append(l.Loaders, filepath.Join(filepath.Dir(pattern), filepath.Base(file)))
		}
	}
	slices.Sort(l.Loaders)
	if out, err := c.run(ctx, "getconf", "GNU_LIBC_VERSION"); err == nil {
		l.Name, l.Version = libcOf(string(out))
	}
	if l.Name == "" {
		out, _ := c.run(ctx, "ldd", "--version") // musl's fails, and says its version
		l.Name, l.Version = libcOf(string(out))
	}
}

// libcOf reads "glibc 2.36", or the first lines of ldd --version.
func libcOf(text string) (name, version string) {
	if rest, ok := strings.CutPrefix(text, GLIBC+" "); ok {
		return GLIBC, strings.TrimSpace(rest)
	}
	if strings.Contains(text, "musl libc") {
		_, rest, _ := strings.Cut(text, "Version ")
		version, _, _ = strings.Cut(rest, "\n")
		return musl, strings.TrimSpace(version)
	}
	first, _, _ := strings.Cut(text, "\n")
	if found := regexp.MustCompile(`^ldd \(.*\) (\d+\.\d+)`).FindStringSubmatch(first); found != nil {
		return GLIBC, found[1]
	}
	return "", ""
}
