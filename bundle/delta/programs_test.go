package delta

import (
	"os"
	"testing"
	"time"
)

// TestProgramsOfTheDevelopersChoice prints the size of the patch from one program to another.
func TestProgramsOfTheDevelopersChoice(t *testing.T) {
	before, after := os.Getenv("KKBUNDLE_PROGRAM_OLD"), os.Getenv("KKBUNDLE_PROGRAM_NEW")
	if before == "" {
		t.Skip("set KKBUNDLE_PROGRAM_OLD and KKBUNDLE_PROGRAM_NEW")
	}
	old, err := os.ReadFile(before)
	if err != nil {
		t.Fatal(err)
	}
	next, err := os.ReadFile(after)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() ([]byte, error){
		"zstd":                      func() ([]byte, error) { return packZstd(next, nil) },
		"zstd with the old program": func() ([]byte, error) { return packZstd(next, old) },
		"edits":                     func() ([]byte, error) { return makeEdits(old, next) },
	} {
		start := time.Now()
		data, err := f()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes of %d, %v", name, len(data), len(next), time.Since(start))
	}
}
