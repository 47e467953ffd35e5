package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestASessionIsRecorded(t *testing.T) {
	t.Parallel()
	cast, err := record(t.Context(), "# why\nprintf 'a <b>\\n'; echo to stderr >&2\n\nseq 100\nprintf '%200s\\n' x\n")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := parse(cast)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for i, l := range lines {
		text = append(text, l.text)
		if utf8.RuneCountInString(l.text) > columns && !strings.HasPrefix(l.text, "$ ") {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(l.text), l.text)
		}
		if i > 0 && l.at < lines[i-1].at {
			t.Errorf("line %d came before the one above it", i)
		}
	}
	all := strings.Join(text, "\n")
	for _, want := range []string{
		"a <b>\nto stderr\n\n$ seq 100\n1\n2\n3\n… 92 more lines\n96\n",
		"\n100\n\n$ printf",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
	svg, err := draw(cast)
	if err != nil || !strings.Contains(svg, "a &lt;b&gt;") {
		t.Errorf("%v\n%s", err, svg)
	}
	wellFormed(t, svg)
}

func TestASessionWithACommandThatFailsIsNoRecording(t *testing.T) {
	t.Parallel()
	if cast, err := record(t.Context(), "echo a\nfalse | cat\necho b\n"); err == nil || cast != "" {
		t.Errorf("%v\n%s", err, cast)
	}
	for _, bad := range []string{
		"", "{\"version\":1}\n", "{\"version\":2}\n[1,\"i\",\"x\"]\n",
		"{\"version\":2}\n[1\n",
	} {
		if _, err := draw(bad); err == nil {
			t.Errorf("%q is drawn", bad)
		}
	}
}

// TestREADMEsPictureIsTheRecording compares the picture in the repository with the recording beside it.
func TestREADMEsPictureIsTheRecording(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "..", "docs")
	cast, err := os.ReadFile(filepath.Join(docs, "recording.cast"))
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join(docs, "recording.svg"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := draw(string(cast))
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Error("docs/recording.svg is not the picture of docs/recording.cast: run go run ./cmd/internal/recording draw docs/recording.cast docs/recording.svg")
	}
	if len(have) > 100_000 {
		t.Errorf("docs/recording.svg has %d bytes", len(have))
	}
	wellFormed(t, want)
	for _, command := range []string{"$ kkbundle build ", "$ kkbundle install "} {
		if !strings.Contains(want, command) {
			t.Errorf("the recording does not show %q", command)
		}
	}
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
