package cli

import (
	"strings"
	"testing"
)

// TestVersionNamesCommit: the Makefile sets version, commit and date in one value.
func TestVersionNamesCommit(t *testing.T) { //nolint:paralleltest // sets version
	defer func(v string) { version = v }(version)
	version = "v1.2.3,0123456789abcdef0123456789abcdef01234567,2026-11-23T03:59:05Z"
	if got := versionLine(); !strings.HasPrefix(got, "kkbundle v1.2.3 (0123456789ab 2026-11-23) ") {
		t.Errorf("got %q", got)
	}
	if programVersion() != "v1.2.3" {
		t.Errorf("program: %q", programVersion())
	}
}
