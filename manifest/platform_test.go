package manifest

import (
	"slices"
	"strings"
	"testing"
)

func TestRunsOn(t *testing.T) {
	for p, want := range map[string]string{
		"linux/amd64":    "linux/amd64",
		"linux/amd64/v3": "linux/amd64/v3 linux/amd64/v2 linux/amd64",
		"linux/arm64":    "linux/arm64",
		"linux/arm64/v9": "linux/arm64/v9 linux/arm64",
		"linux/arm/v7":   "linux/arm/v7 linux/arm/v6 linux/arm/v5",
		"linux/arm/v5":   "linux/arm/v5",
		"linux/riscv64":  "linux/riscv64",
	} {
		if got := RunsOn(p); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %v, want %s", p, got, want)
		}
	}
}
