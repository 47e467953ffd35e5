//go:build linux

package scale

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestFigures prints the table of docs/reference/performance.md: what each command takes for 8 GiB of content in
// files of many sizes. The upstream and the registry are in this process and not counted.
func TestFigures(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench runs it")
	}
	var sources []source
	var content int64
	for i, size := range []int64{4 * gib, gib, gib, 512 * mib, 512 * mib, 256 * mib, 256 * mib, 128 * mib} {
		sources = append(sources, source{
			name: fmt.Sprint("large-", i), seed: uint64(i + 1), size: size,
			random: i%2 == 1, known: true,
		})
		content += size
	}
	for i := range 160 {
		sources = append(sources, source{
			name: fmt.Sprint("small-", i), seed: uint64(i + 100),
			size: int64(i+1) * 37_000, known: true,
		})
		content += int64(i+1) * 37_000
	}
	p := newPlace(t, upstream(t, sources...))
	destination := registrytest.Start(t, registrytest.Options{Dir: t.TempDir()})
	var table strings.Builder
	table.WriteString("| command | wall | CPU | CPU per GB | peak memory | read | written | from disk | to disk |\n|---|---|---|---|---|---|---|---|---|\n")
	push := []string{program(t), "push", "--quiet", "--plain-http", "--registry", destination.Host, p.output}
	for _, row := range []struct {
		name string
		args []string
	}{
		{"build, nothing cached", p.command(t)},
		{"build again, all cached", p.command(t)},
		{"verify", []string{program(t), "verify", "--quiet", p.output}},
		{"inspect", []string{program(t), "inspect", "--json", p.output}},
		{"extract", []string{program(t), "extract", "--quiet", "-o", filepath.Join(t.TempDir(), "layout"), p.output}},
		{"push to an empty registry", push},
		{"push again", push},
	} {
		u := must(t, "", row.args...)
		fmt.Fprintf(&table, "| %s | %.2f s | %.2f s | %.2f s | %d MiB | %s | %s | %s | %s |\n", row.name,
			u.Wall.Seconds(), u.CPU.Seconds(),
			u.CPU.Seconds()*1e9/float64(content), u.Peak/mib, gb(u.Read), gb(u.Wrote), gb(u.Loaded), gb(u.Stored))
	}
	info, err := os.Stat(p.output)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d items, %s of content, a bundle of %s\n%s", len(sources), gb(content), gb(info.Size()), table.String())
}

func gb(n int64) string { return fmt.Sprintf("%.2f GB", float64(n)/1e9) }
