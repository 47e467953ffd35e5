//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// build links the program for an architecture as make helper does.
func build(t *testing.T, arch string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "start")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -E main.entry", "-o", path,
		".")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestStart runs the program on this machine's processor, and the other one under an emulator that is there.
func TestStart(t *testing.T) {
	for arch, emulator := range map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"} {
		t.Run(arch, func(t *testing.T) {
			program := build(t, arch)
			if info, err := os.Stat(program); err != nil || info.Size() > 1<<20 {
				t.Errorf("the program has to fit into a ConfigMap: %v, %v", info.Size(), err)
			}
			command := []string{program}
			if arch != runtime.GOARCH {
				if _, err := exec.LookPath(emulator); err != nil {
					t.Skip(err)
				}
				command = []string{emulator, program}
			}
			started(t, command)
		})
	}
}

func started(t *testing.T, command []string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	out, first, second := filepath.Join(dir, "out"), write("1", "#!/bin/"),
		write("2", "sh\necho $1 $2 ${VALUE-unset}\n")
	for _, test := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"two chunks", "a b unset\n", 0, []string{out, first, second, "--", "name", "a", "b"}},
		{"again", "a b unset\n", 0, []string{out, first, second, "--", "name", "a", "b"}},
		{
			"a missing chunk", "kkbundle-start: a chunk of the program cannot be opened\n", 127,
			[]string{out, first, dir + "/3", "--", "name"},
		},
		{
			"no end of chunks", "kkbundle-start: usage: kkbundle-start PROGRAM CHUNK... -- NAME ARGUMENT...\n", 127,
			[]string{out, first, second},
		},
		{
			"no name", "kkbundle-start: usage: kkbundle-start PROGRAM CHUNK... -- NAME ARGUMENT...\n", 127,
			[]string{out, first, second, "--"},
		},
		{"no arguments", "kkbundle-start: usage: kkbundle-start PROGRAM CHUNK... -- NAME ARGUMENT...\n", 127, nil},
		{
			"no place", "kkbundle-start: the program's file cannot be created\n", 127,
			[]string{dir + "/no/out", first, "--", "name"},
		},
		{
			"no program", "kkbundle-start: the program cannot be started\n", 127,
			[]string{out, write("4", "text"), "--", "name"},
		},
	} {
		cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], test.args...)...)
		cmd.Env = append(os.Environ(), "VALUE=c") // of the borrowed image
		got, _ := cmd.CombinedOutput()
		if string(got) != test.want || cmd.ProcessState.ExitCode() != test.code {
			t.Errorf("%s: %q, exit code %d", test.name, got, cmd.ProcessState.ExitCode())
		}
	}
}
