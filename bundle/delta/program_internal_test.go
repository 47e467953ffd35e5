package delta

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestTheProgramZstdPacksSmaller packs with the machine's own program, and unpacks without it.
func TestTheProgramZstdPacksSmaller(t *testing.T) {
	program := theProgram(t)
	b := bundletest.NewBuilder(t)
	b.File(bundletest.FileRef, "program", nil, elf(machineAMD64, 900_000))
	made := b.Bundle()
	next := bundle.From{Name: "next", Reader: made.Reader}
	sizes := map[string]int64{}
	for _, with := range []string{"", program} {
		dir := t.TempDir()
		packed, back := filepath.Join(dir, "x.kkp"), filepath.Join(dir, "back.kkb")
		c, err := Create(t.Context(), next, Options{Output: packed, Zstd: with})
		if err != nil {
			t.Fatal(err)
		}
		sizes[with] = c.Bytes
		if _, err := Apply(t.Context(), packed, Options{Output: back}); err != nil {
			t.Fatal(err)
		}
		got, gotErr := os.ReadFile(back)
		want, wantErr := os.ReadFile(made.Path)
		if err := errors.Join(gotErr, wantErr); err != nil || !bytes.Equal(got, want) {
			t.Errorf("program %q: other bytes, %v", with, err)
		}
	}
	if sizes[program] >= sizes[""] {
		t.Errorf("with the program: %d bytes; without %d", sizes[program], sizes[""])
	}
}

// theProgram returns the path of zstd.
func theProgram(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("zstd")
	if err != nil {
		t.Skip("no program zstd here: not compared")
	}
	return program
}

// TestWindowsOfTheProgramAreBounded holds the memory that unpack takes: the window of a frame is never larger than
// its content.
func TestWindowsOfTheProgramAreBounded(t *testing.T) {
	packed, err := packWith(t.Context(), theProgram(t), bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	var h zstd.Header
	if err := h.Decode(packed); err != nil {
		t.Fatal(err)
	}
	if !h.HasFCS || h.FrameContentSize != 1<<20 || h.WindowSize > 1<<20 {
		t.Errorf("content %d, window %d; want 1 MiB at most", h.FrameContentSize, h.WindowSize)
	}
}

// TestProgramsThatFailAreNamed packs with programs that are no zstd.
func TestProgramsThatFailAreNamed(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"fails":            {"echo 'zstd: no memory' >&2; exit 1", "exit status 1: zstd: no memory"},
		"prints too much":  {"exec head -c 3000000 /dev/zero", "broken pipe"},
		"reads nothing":    {"exit 3", "exit status 3"},
		"fails at its end": {"cat; exit 4", "exit status 4"},
	} {
		program := script(t, c.script)
		packed, err := packWith(t.Context(), program, make([]byte, 1<<20))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.HasPrefix(err.Error(), "compress with "+program+": ") {
			t.Errorf("%s: %d bytes, %v; want %q", name, len(packed), err, c.want)
		}
	}
}

// script writes a shell script.
func script(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "zstd")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return path
}
