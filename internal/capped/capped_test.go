package capped_test

import (
	"io"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/capped"
)

func TestWriters(t *testing.T) {
	t.Parallel()
	head, tail, buffer := &capped.Head{Most: 4}, &capped.Tail{Most: 4}, &capped.Buffer{Most: 4}
	for _, text := range []string{"a\n", "b\nc", "d"} {
		for _, w := range []io.Writer{head, tail} {
			if _, err := io.Copy(w, strings.NewReader(text)); err != nil {
				t.Error(err)
			}
		}
	}
	if got := string(head.Bytes()); got != "a\nb\n" {
		t.Errorf("head: %q", got)
	}
	if got, lines := tail.String(), tail.Lines(); got != "b\ncd" || lines != "…\ncd" {
		t.Errorf("tail: %q, in lines %q", got, lines)
	}
	if _, err := io.WriteString(buffer, "abcd"); err != nil || buffer.String() != "abcd" {
		t.Errorf("%q, %v", buffer.String(), err)
	}
	if _, err := io.WriteString(buffer, "e"); err == nil || string(buffer.Bytes()) != "abcd" {
		t.Errorf("%q, %v", buffer.Bytes(), err)
	}
}
