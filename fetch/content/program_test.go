package content_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/content"
)

// TestPlatforms reads the headers of programs, and that of this one.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	elf := func(machine, data byte) string {
		head := []byte("\x7fELF\x02" + string([]byte{data}) + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00")
		if head[18] = machine; data == 2 {
			head[18], head[19] = 0, machine
		}
		return string(head)
	}
	windows := "MZ" + string(make([]byte, 0x3a)) + "\x40\x00\x00\x00" + "PE\x00\x00\x64\x86"
	for head, want := range map[string][]string{
		elf(62, 1):                         {"linux/amd64"},
		elf(183, 1):                        {"linux/arm64"},
		elf(40, 1):                         {"linux/arm"},
		elf(21, 1):                         {"linux/ppc64le"},
		elf(22, 2):                         {"linux/s390x"},
		elf(99, 1):                         nil,
		"\xcf\xfa\xed\xfe\x0c\x00\x00\x01": {"darwin/arm64"},
		"\xca\xfe\xba\xbe\x00\x00\x00\x02" + "\x01\x00\x00\x07" + string(make([]byte, 16)) + "\x01\x00\x00\x0c": {"darwin/amd64", "darwin/arm64"},
		"\xca\xfe\xba\xbe\xff\xff\xff\xff": nil,
		windows:                            {"windows/amd64"},
		windows[:0x40]:                     nil,
		"#!/bin/sh\n":                      nil,
		"":                                 nil,
		"\x7fELF":                          nil,
	} {
		if got := content.Platforms([]byte(head)); !slices.Equal(got, want) {
			t.Errorf("%q is for %v, want %v", head, got, want)
		}
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Clean(own))
	if err != nil {
		t.Fatal(err)
	}
	if got := content.Platforms(data[:content.MaxHead]); !slices.Contains(got, runtime.GOOS+"/"+runtime.GOARCH) {
		t.Errorf("this program is for %v", got)
	}
}
