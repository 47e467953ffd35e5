package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestPack packs a program again where its file is missing, damaged or another program's, with the same bytes, and
// only there.
func TestPack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dictionary := filepath.Join(dir, "dictionary")
	program, packed := filepath.Join(dir, "program"), filepath.Join(dir, "program.zst")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(dictionary, "what programs have in common")
	var first []byte
	for _, text := range []string{"old", "program", "program", "damaged"} {
		write(program, "program")
		if text == "old" {
			write(program, text)
		}
		if text == "damaged" {
			write(packed, text)
		}
		before, _ := os.Stat(packed)
		if err := run([]string{dir, dictionary, program}); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(packed)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(packed)
		if err != nil {
			t.Fatal(err)
		}
		if text == "old" {
			continue
		}
		if first == nil {
			first = data
			continue
		}
		if !bytes.Equal(data, first) || (text == "program") != os.SameFile(before, after) {
			t.Errorf("%s: the file has %d bytes, %d at first; it was replaced: %t", text, len(data), len(first),
				!os.SameFile(before, after))
		}
	}
}
