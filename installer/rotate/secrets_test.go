//go:build linux

package rotate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// encryptingSite returns two control planes whose API servers run with a key, and the log of their restarts, a line
// "HOST KEY KEY..." for each, and "rewrite" for each time that all Secrets were rewritten.
func encryptingSite(t *testing.T) (*sitetest.Site, string) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "cp2")
	s.Options.Inventory = &manifest.Inventory{
		HostSpecs: manifest.HostSpecs{{Name: "cp1", Address: "10.0.0.3"}, {Name: "cp2", Address: "10.0.0.4"}},
		Groups:    manifest.Groups{ControlPlane: []string{"cp1", "cp2"}, Registry: []string{"cp1"}},
	}
	s.Options.Cluster = tasktest.Cluster(t, "")
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: kubeadm.SecurityTasks()}}); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	for name, h := range s.Hosts {
		h.Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
		p := sitetest.PlayProcesses(t, h)
		names := "sed -n 's/.*- name: //p' " + filepath.Join(h.Root, kubeadm.EncryptionOnHost)
		p.Stub(t, "pkill", `echo "`+name+` $(`+names+` | tr '\n' ' ')" >>`+log+
			`; echo "$(cat "$dir/$name" 2>/dev/null)1" >"$dir/$name"`)
		h.Stub(t, "kubectl", `case "$*" in *replace*) echo rewrite >>`+log+
			`;; *"/api/v1/secrets?"*) echo '{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}';; esac`)
	}
	return s, log
}

// restarts returns the lines of the log, with the names of keys as their number in the order of their making.
func restarts(t *testing.T, log string) []string {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// checkOrder holds that no API server ever encrypts with a key that another one, as it runs, cannot decrypt with, and
// that a key is dropped only after all Secrets were rewritten with the first key of every API server.
func checkOrder(t *testing.T, lines []string) {
	t.Helper()
	runs := map[string][]string{"cp1": {"kkbundle1"}, "cp2": {"kkbundle1"}}
	rewritten := "kkbundle1"
	for i, line := range lines {
		name, list, _ := strings.Cut(line, " ")
		if name == "rewrite" {
			if rewritten = ""; runs["cp1"][0] == runs["cp2"][0] {
				rewritten = runs["cp1"][0]
			}
			continue
		}
		runs[name] = strings.Fields(list)
		for _, keys := range runs {
			if first := runs[name][0]; !slices.Contains(keys, first) {
				t.Fatalf("restart %d: %s encrypts with %s, and another API server has %q only:\n%s", i, name, first,
					keys, strings.Join(lines, "\n"))
			}
		}
		if !slices.Contains(runs[name], rewritten) {
			t.Fatalf("restart %d: %s drops %s, and Secrets are encrypted with it:\n%s", i, name, rewritten,
				strings.Join(lines, "\n"))
		}
	}
}

// TestRotateKey holds the order of a rotation, and that nothing is left of the old key but in the work directory.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	s, log := encryptingSite(t)
	old := s.Hosts["cp1"].Content(kubeadm.EncryptionOnHost)
	if err := rotateEncryptionKey(t.Context(), s.Run(t, nil)); err != nil {
		t.Fatal(err)
	}
	lines := restarts(t, log)
	checkOrder(t, lines)
	got := s.Hosts["cp1"].Content(kubeadm.EncryptionOnHost)
	if len(lines) != 7 || lines[4] != "rewrite" || got != s.Hosts["cp2"].Content(kubeadm.EncryptionOnHost) ||
		strings.Contains(got, "kkbundle1") || !strings.Contains(got, "identity") {
		t.Errorf("%s\n%s", strings.Join(lines, "\n"), got)
	}
	var retired []struct{ Name, Secret string }
	data, err := os.ReadFile(filepath.Join(s.Options.WorkDir, "site", kubeadm.RetiredKeysFile))
	if err != nil {
		data, err = os.ReadFile(filepath.Join(s.Options.WorkDir, kubeadm.RetiredKeysFile))
	}
	if err != nil || yaml.Unmarshal(data, &retired) != nil || len(retired) != 1 ||
		!strings.Contains(old, "secret: "+retired[0].Secret) {
		t.Errorf("retired keys: %s, %v", data, err)
	}
	s.States()
	for _, tasks := range [][]task.Task{kubeadm.SecurityTasks(), {kubeadm.EncryptTask()}} {
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: tasks}}); err != nil {
			t.Fatal(err)
		}
	}
	if states := strings.Join(s.States(), " "); strings.Contains(states, "changed") {
		t.Error("install after a rotation:", states)
	}
	// A copy of etcd from before the rotation has Secrets with the old key.
	for _, target := range s.Run(t, nil).Hosts {
		if err := kubeadm.AddRetiredKeys(t.Context(), target); err != nil {
			t.Fatal(err)
		}
	}
	if with := s.Hosts["cp2"].Content(kubeadm.EncryptionOnHost); strings.Index(with,
		"name: kkbundle-2") > strings.Index(with, "name: kkbundle1") || !strings.Contains(with, retired[0].Secret) {
		t.Errorf("for a restore: %s", with)
	}
}

// A killingHost ends the run when its lifetime is over, so that nothing waits for a better answer.
type killingHost struct {
	host.Host
	kill context.CancelCauseFunc
}

func (h killingHost) Run(ctx context.Context, cmd host.Cmd) error {
	err := h.Host.Run(ctx, cmd)
	if errors.Is(err, sitetest.ErrKilled) {
		h.kill(err)
	}
	return err
}

// TestRotateKeyContinues kills a rotation after each of its commands. The next one completes it.
func TestRotateKeyContinues(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 3)
	for left := 1; ; left += step {
		s, log := encryptingSite(t)
		r := s.Run(t, nil)
		ctx, kill := context.WithCancelCause(t.Context())
		life := &sitetest.Lifetime{Left: left}
		for _, target := range r.Hosts {
			target.Conn = killingHost{&sitetest.MortalHost{Host: target.Conn, Life: life}, kill}
		}
		first := rotateEncryptionKey(ctx, r)
		kill(nil)
		if first == nil {
			if left < 20 {
				t.Fatalf("a rotation has only %d commands", left)
			}
			return
		}
		if !errors.Is(first, sitetest.ErrKilled) {
			t.Fatal(first)
		}
		if err := rotateEncryptionKey(t.Context(), s.Run(t, nil)); err != nil {
			t.Fatalf("after %d commands: %v", left, err)
		}
		checkOrder(t, restarts(t, log))
		for name, h := range s.Hosts {
			if got := h.Content(kubeadm.EncryptionOnHost); strings.Contains(got, "kkbundle1\n") ||
				strings.Count(got, "- name: ") != 1 {
				t.Fatalf("after %d commands, %s has %s", left, name, got)
			}
		}
		if got := fmt.Sprint(restarts(t, log)); !strings.Contains(got, "rewrite") {
			t.Fatal(got)
		}
	}
}

// TestK3sRotateKey holds that k3s is told once to rotate, and that every server restarts when it has rewritten
// Secrets. A rotation in progress is completed and none begun. k3s' command gives up after 90 seconds, and its server
// goes on.
func TestK3sRotateKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string
		states []string
		asked  int
		fails  bool // the command that begins a rotation
		want   string
	}{
		"a rotation": {
			"secrets-encryption: true\n",
			[]string{
				`{"stage":"start","hashmatch":true}`,
				`{"stage":"reencrypt_active","hashmatch":false}`, `{"stage":"reencrypt_finished","hashmatch":false}`,
			},
			1,
			false, "",
		},
		"one in progress": {
			"secrets-encryption: true\n",
			[]string{
				`{"stage":"reencrypt_active","hashmatch":false}`,
				`{"stage":"reencrypt_finished","hashmatch":false}`,
			},
			0, false, "",
		},
		"servers not restarted": {
			"secrets-encryption: true\n",
			[]string{`{"stage":"reencrypt_finished","hashmatch":false}`},
			0, false, "",
		},
		"made without encryption": {
			"node-name: cp1\n",
			[]string{`{}`},
			0, false,
			"it was installed by a kkbundle release that did not encrypt them",
		},
		"a rotation that outlasts its command": {"secrets-encryption: true\n", []string{
			`{"stage":"reencrypt_finished","activekey":"AES-CBC old","hashmatch":true}`,
			`{"stage":"reencrypt_active","activekey":"AES-CBC new","hashmatch":false}`,
			`{"stage":"reencrypt_active","activekey":"AES-CBC new","hashmatch":false}`,
			`{"stage":"reencrypt_finished","activekey":"AES-CBC new","hashmatch":false}`,
		}, 1, true, ""},
		"a rotation that did not begin": {
			"secrets-encryption: true\n",
			[]string{`{"stage":"reencrypt_finished","activekey":"AES-CBC old","hashmatch":true}`},
			1, true,
			"deadline exceeded",
		},
	} {
		s, l := sitetest.NewLivingK3s(t)
		s.Hosts["cp1"].Put(t, k3s.ConfigFile, c.config)
		asked, states := 0, c.states
		for _, h := range s.Hosts {
			h.Answer("k3s", func(ctx context.Context, cmd host.Cmd) error {
				switch strings.Join(cmd.Args[1:3], " ") {
				case "secrets-encrypt status":
					_, err := fmt.Fprintln(cmd.Stdout, states[0])
					states = states[min(1, len(states)-1):]
					return err
				case "secrets-encrypt rotate-keys":
					asked++
					if c.fails {
						return &host.ExitError{
							Host: "cp1", Args: cmd.Args, Code: 1,
							Stderr: "context deadline exceeded",
						}
					}
					return nil
				}
				cmd.Args = cmd.Args[1:]
				return l.Kubectl(ctx, cmd)
			})
		}
		err := rotateEncryptionKey(t.Context(), s.Run(t, nil))
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || c.want == "" && err != nil ||
			asked != c.asked {
			t.Errorf("%s: %v, asked %d times", name, err, asked)
		}
		for _, server := range []string{"cp1", "cp2", "cp3"} {
			restarts := slices.Contains(s.Hosts[server].Said("systemctl"), "systemctl restart k3s.service")
			if restarts != (c.want == "") {
				t.Errorf("%s: %s restarts: %v", name, server, restarts)
			}
		}
	}
}

// TestK3sStaysAsItWasMade holds that servers follow the first one: k3s cannot begin to encrypt later.
func TestK3sStaysAsItWasMade(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]bool{"": true, "secrets-encryption: true\n": true, "node-name: cp1\n": false} {
		s, _ := sitetest.NewLivingK3s(t)
		for _, h := range s.Hosts {
			h.Put(t, k3s.ServerToken, "K10"+strings.Repeat("a", 64)+"::server:x\n")
			h.Stub(t, "ip", "echo '2: eth1    inet 10.0.0.4/24'")
		}
		if config != "" {
			s.Hosts["cp1"].Put(t, k3s.ConfigFile, config)
		}
		got, err := k3s.Setting(t.Context(), s.Run(t, nil).HostNamed("cp2"), k3s.Unit(true))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got.Files {
			if f.Path == k3s.ConfigFile && strings.Contains(string(f.Data), "secrets-encryption: true") != want {
				t.Errorf("the first server has %q, another one %s", config, f.Data)
			}
		}
	}
}
