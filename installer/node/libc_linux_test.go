package node

import "testing"

// The texts are those of getconf and of ldd --version on Debian 12, Rocky 8, Ubuntu 20.04 and Alpine 3.20.
func TestLibcOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"glibc 2.36\n": {"glibc", "2.36"},
		"ldd (GNU libc) 2.28\nCopyright (C) 2018 Free": {
			"glibc",
			"2.28",
		},
		"ldd (Ubuntu GLIBC 2.31-0ubuntu9.17) 2.31\n": {
			"glibc",
			"2.31",
		},
		"musl libc (x86_64)\nVersion 1.2.5\nDynamic Program Loader\nUsage: ldd [options] [--] pathname\n": {
			"musl",
			"1.2.5",
		},
		"": {"", ""}, "sh: ldd: not found\n": {"", ""},
	} {
		if name, version := libcOf(text); name != want[0] || version != want[1] {
			t.Errorf("%q: got %q %q", text, name, version)
		}
	}
}
