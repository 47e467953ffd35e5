package record_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/record"
	"github.com/kkbundle/kkbundle/manifest"
)

// facts are those of a host of this name, recorded for the tests of checks.
func facts(t *testing.T, name string) *node.Facts {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "facts", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var f node.Facts
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &f
}

// given has two hosts of different systems, with all that is known besides their facts.
func given(t *testing.T) precheck.Input {
	t.Helper()
	in := precheck.Input{
		Cluster: &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}},
		Hosts: []precheck.Host{
			{
				Host:  manifest.Host{Name: "cp1", Roles: []manifest.Role{manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleCluster}},
				Facts: facts(t, "ubuntu-24.04"),
				Space: []precheck.Space{{For: "images", Dir: "/var/lib/containerd", Bytes: 10 << 30}},
			},
			{
				Host:  manifest.Host{Name: "w1", Roles: []manifest.Role{manifest.RoleWorker, manifest.RoleCluster}},
				Facts: facts(t, "rocky-9"),
			},
		},
		Architectures: []string{"amd64"}, Install: true,
	}
	for i := range in.Hosts {
		h := &in.Hosts[i]
		h.Sent = time.Unix(0, h.Facts.Clock).Add(-time.Second / 2)
		h.Received = h.Sent.Add(time.Second)
	}
	return in
}

// TestRecord holds that recorded facts give the report that the facts gave.
func TestRecord(t *testing.T) {
	t.Parallel()
	in := given(t)
	in.Hosts = append(in.Hosts, precheck.Host{
		Host: manifest.Host{Name: "lost"},
		Err:  &hinted{errors.New("lost: no answer"), "wake it up"},
	})
	in.Hosts[0].Host.SSH.PasswordEnv = "PASSWORD"
	in.Links = []precheck.Link{{From: "cp1", To: "w1", Network: "tcp", Port: 10250, OK: true}}
	dir := filepath.Join(t.TempDir(), "facts")
	if err := record.Write(dir, in); err != nil {
		t.Fatal(err)
	}
	recording, err := record.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	again := in
	again.Links, again.Hosts = recording.Links, nil
	for _, h := range in.Hosts {
		again.Hosts = append(again.Hosts, recording.Host(h.Host))
	}
	if diff := cmp.Diff(precheck.Evaluate(in), precheck.Evaluate(again)); diff != "" {
		t.Errorf("(-of the hosts +of their records):\n%s", diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, e.Name())); err != nil ||
			strings.Contains(string(data), "PASSWORD") {
			t.Errorf("%s has how to log in, %v", e.Name(), err)
		}
	}
	if err := record.Write(dir, in); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// A hinted error knows what to do.
type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string { return h.hint }

// TestRecordingOfOthers has what people put into the directory by hand.
func TestRecordingOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bare, err := json.Marshal(facts(t, "debian-12"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bare": string(bare), "broken": "{", "other": `{"kind": "Pod"}`,
		"future": `{"version": 2, "host": "future", "error": "x"}`, "text": "root",
		"newer": `{"version": 1, "host": "newer", "facts": {"version": 99}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	recording, err := record.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"bare": "", "broken": "not what --record writes", "other": "version 0 of facts",
		"future": "version 2 of a record", "text": "not what --record writes",
		"newer": "version 99 of facts", "folder": "not a regular file", "missing": "there is no ",
	} {
		h := recording.Host(manifest.Host{Name: name})
		if (h.Err == nil) != (want == "") || (h.Facts == nil) != (want != "") ||
			h.Err != nil && !strings.Contains(h.Err.Error(), want) {
			t.Errorf("%s: facts %t, %v; want %q", name, h.Facts != nil, h.Err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "_links.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Open(dir); err == nil {
		t.Error("links that are no JSON: no error")
	}
	if _, err := record.Open(filepath.Join(dir, "bare.json")); err == nil {
		t.Error("a file in place of a directory: no error")
	}
}
