package mirror_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

var update = flag.Bool("update", false, "write the golden files")

// TestConfigure compares everything that is written with testdata: with a login and an authority, and without.
func TestConfigure(t *testing.T) {
	t.Parallel()
	upstreams := []string{"registry.k8s.io", "docker.io", "registry.lab:5000", "docker.io"}
	for name, r := range map[string]mirror.Registry{
		"private": {
			Host: "harbor.site:8443", Prefix: "mirror", CA: []byte("-----BEGIN CERTIFICATE-----\n"),
			Username: "hosts", Password: "correct-horse",
		},
		"plain": {Host: "10.0.0.3:5000", PlainHTTP: true},
	} {
		for _, runtime := range mirror.Runtimes() {
			c, err := mirror.Configure(runtime, r, upstreams)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, f := range c.Files {
				fmt.Fprintf(&b, "== %s %04o\n%s", f.Path, f.Mode, f.Data)
				secret := strings.Contains(string(f.Data), "aG9zdHM6Y29ycmVjdC1ob3JzZQ==") ||
					strings.Contains(string(f.Data), "correct-horse")
				if secret != (f.Secrecy == hostfile.Logins) || secret != (f.Mode == 0o600) {
					t.Errorf("%s: has the login %v, is secret %v, mode %o", f.Path, secret, f.Secrecy, f.Mode)
				}
			}
			for _, n := range c.Notes {
				fmt.Fprintf(&b, "note: %s\n", n)
			}
			golden(t, name+"-"+string(runtime)+".txt", b.String())
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s: %s", name, d)
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"", "..", "../../etc", "a/b", "a..b", "a b", "-a", "a:", "a:123456", "[::1", "a\"b",
		"a\nb",
	} {
		if _, err := mirror.Configure(mirror.RuntimeContainerd, mirror.Registry{Host: "r"}, []string{u}); err == nil {
			t.Errorf("upstream %q was taken", u)
		}
	}
	for _, u := range []string{"docker.io", "registry.lab:5000", "10.0.0.3", "[fd00::1]:5000", "localhost"} {
		if err := mirror.CheckUpstream(u); err != nil {
			t.Error(err)
		}
	}
	if _, err := mirror.Configure("podman", mirror.Registry{Host: "r"}, nil); err == nil ||
		!strings.Contains(err.Error(), "crio") {
		t.Errorf("an unknown runtime: %v", err)
	}
}

// TestMerge puts ours into files that others wrote.
func TestMerge(t *testing.T) {
	t.Parallel()
	r := mirror.Registry{Host: "r:5000", PlainHTTP: true}
	for name, c := range map[string]struct {
		runtime            mirror.Runtime
		path, have         string
		state              hostfile.State
		want, gone, reason string // parts of the file afterwards, and of the refusal
		force              bool
	}{
		"other keys": {
			runtime: mirror.RuntimeDocker, path: "/etc/docker/daemon.json",
			have:  `{"log-driver": "journald", "shutdown-timeout": 15, "registry-mirrors": ["https://other"]}`,
			state: hostfile.StateChanged,
			want:  "\"http://r:5000\",\n    \"https://other\"\n  ],\n  \"shutdown-timeout\": 15",
		},
		"ours there": {
			runtime: mirror.RuntimeDocker, path: "/etc/docker/daemon.json",
			have:  `{"insecure-registries":["r:5000"],"registry-mirrors":["http://r:5000"]}`,
			state: hostfile.StateSame, want: `{"insecure-registries":["r:5000"]`,
		},
		"no JSON": {
			runtime: mirror.RuntimeDocker, path: "/etc/docker/daemon.json", have: `{`,
			state: hostfile.StateForeign, reason: "not a JSON object",
		},
		"no object": {
			runtime: mirror.RuntimeDocker, path: "/etc/docker/daemon.json", have: `null`,
			state: hostfile.StateForeign, reason: "not a JSON object",
		},
		"no list": {
			runtime: mirror.RuntimeDocker, path: "/etc/docker/daemon.json", have: `{"registry-mirrors":"x"}`,
			state: hostfile.StateForeign, reason: "not a list",
		},
		"other mirrors": {
			runtime: mirror.RuntimeK3s, path: "/etc/rancher/k3s/registries.yaml",
			have:  "# of the site\nmirrors:\n  quay.io:\n    endpoint: [https://other]\n",
			state: hostfile.StateChanged, want: "# of the site\nmirrors:\n  quay.io:\n",
		},
		"another mirror of the same": {
			runtime: mirror.RuntimeK3s, path: "/etc/rancher/k3s/registries.yaml",
			have:  "mirrors:\n  docker.io:\n    endpoint: [https://other]\n",
			state: hostfile.StateForeign, reason: "different value for mirrors.docker.io.endpoint",
		},
		"by force": {
			runtime: mirror.RuntimeK3s, path: "/etc/rancher/k3s/registries.yaml",
			have:  "mirrors:\n  docker.io:\n    endpoint: [https://other]\n",
			state: hostfile.StateForeign, force: true, want: "- http://r:5000", gone: "other",
		},
		"hosts.toml of others": {
			runtime: mirror.RuntimeContainerd, path: "/etc/containerd/certs.d/docker.io/hosts.toml",
			have:  "server = \"https://other\"\n",
			state: hostfile.StateForeign, reason: "-server = \"https://other\"\n+# Written by kkbundle.",
		},
		"hosts.toml of ours": {
			runtime: mirror.RuntimeContainerd, path: "/etc/containerd/certs.d/docker.io/hosts.toml",
			have:  hostfile.Mark + "\nold\n",
			state: hostfile.StateChanged, want: "server = \"http://r:5000/v2/docker.io\"", gone: "old",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			target := filepath.Join(root, c.path)
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(target, []byte(c.have), 0o644); err != nil {
				t.Fatal(err)
			}
			config, err := mirror.Configure(c.runtime, r, []string{"docker.io"})
			if err != nil {
				t.Fatal(err)
			}
			o := hostfile.Options{Root: root, Force: c.force}
			changes, err := hostfile.Check(o, config.Files)
			if err != nil {
				t.Fatal(err)
			}
			for _, ch := range changes {
				if ch.Path == c.path && ch.State != c.state {
					t.Errorf("state %s, want %s", ch.State, c.state)
				}
			}
			err = hostfile.Apply(o, changes)
			got, readErr := os.ReadFile(target)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if c.reason != "" {
				if err == nil || !strings.Contains(err.Error(), c.reason) || string(got) != c.have {
					t.Errorf("%v, and the file is %q", err, got)
				}
				return
			}
			if err != nil || !strings.Contains(string(got), c.want) ||
				c.gone != "" && strings.Contains(string(got), c.gone) {
				t.Errorf("%v, and the file is\n%s", err, got)
			}
			if kept, err := os.ReadFile(target + hostfile.BackupSuffix); c.force && string(kept) != c.have {
				t.Errorf("kept %q, %v", kept, err)
			}
			again, err := hostfile.Check(o, config.Files)
			if err != nil {
				t.Fatal(err)
			}
			for _, ch := range again {
				if ch.State != hostfile.StateSame {
					t.Errorf("the second time %s is %s:\n%s", ch.Path, ch.State, ch.Diff)
				}
			}
		})
	}
}
