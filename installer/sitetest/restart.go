//go:build linux

package sitetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Played are a control plane's processes that exist as files with their ids. The script that looks for and ends them
// is a real one, in a real shell, which finds these programs instead of pgrep, pkill, kubectl and sleep.
type Played struct{ dir, stubs string }

// PlayProcesses makes a host answer what runs on it.
func PlayProcesses(t *testing.T, h *Rooted) *Played {
	t.Helper()
	p := &Played{dir: t.TempDir(), stubs: h.Stubs}
	for i, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		p.put(t, filepath.Join(p.dir, name), fmt.Sprintln(10+i))
	}
	p.Stub(t, "pgrep", `cat "$dir/$name" 2>/dev/null`)
	p.Stub(t, "pkill", `echo "end $name" >>"$dir/log"; echo "$(cat "$dir/$name" 2>/dev/null)1" >"$dir/$name"`)
	p.Stub(t, "kubectl", `echo ask >>"$dir/log"`)
	p.Stub(t, "sleep", `echo sleep >>"$dir/log"`)
	return p
}

func (p *Played) put(t *testing.T, name, content string) {
	t.Helper()
	WriteProgram(t, name, content)
}

// Stub makes a command of the host run a line of shell, with the process in $name.
func (p *Played) Stub(t *testing.T, name, line string) {
	t.Helper()
	p.put(t, filepath.Join(p.stubs, name), "#!/bin/sh\ndir='"+p.dir+
		"'\nfor name; do :; done; name=${name#^}; name=${name%% *}\n"+line+"\n")
}

// Log returns what was done to the processes since the last call, in one line, without the time that was waited.
func (p *Played) Log(t *testing.T) string {
	t.Helper()
	name := filepath.Join(p.dir, "log")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(string(data), "sleep\n", "")), " ")
}
