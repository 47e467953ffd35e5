package cri

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

// classes are the further runtimes that sites have most often.
const classes = `cri:
  runtimeClasses:
    - {name: nvidia, binary: /usr/bin/nvidia-container-runtime, nodeSelector: {nvidia.com/gpu.present: "true"}}
    - {name: kata, type: io.containerd.kata.v2, binary: /opt/kata/bin/containerd-shim-kata-v2, options: {ConfigPath: /opt/kata/share/defaults/kata-containers/configuration.toml}}
    - {name: gvisor, type: io.containerd.runsc.v1}
    - {name: crun, options: {BinaryName: /usr/bin/crun, SystemdCgroup: "false", Root: 'C:\"x"'}}
`

func TestContainerdFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*manifest.Cluster{
		"v2":         tasktest.Cluster(t, ""),
		"v1":         tasktest.Cluster(t, "cri: {version: v1.7.30}"),
		"v2-classes": tasktest.Cluster(t, classes),
		"v1-classes": tasktest.Cluster(t, strings.Replace(classes, "cri:", "cri:\n  version: v1.7.30", 1)),
	} {
		got, err := containerdConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Golden(t, "containerd-"+name+".toml", got)
	}
	access := task.RegistryAccess{
		Address: "10.0.0.3:5000", CA: []byte("CA"),
		Login: task.Login{Username: "kkbundle", Password: "pass"},
	}
	peer := mirror.Peer{URL: "http://10.0.0.4:30020", Username: "kkbundle", Password: "of-peers"}
	for name, first := range map[string]Asked{
		"hosts.toml.txt":        {},
		"hosts-peers.toml.txt":  {Peers: []mirror.Peer{peer}},
		"hosts-spread.toml.txt": {Replicas: []string{"10.0.0.2:5000", "10.0.0.1:5000"}},
	} {
		var b strings.Builder
		for _, f := range HostsFiles(access, []string{"docker.io", "registry.example:5000"}, first) {
			fmt.Fprintf(&b, "== %s %04o\n%s", f.Path, f.Mode, f.Data)
		}
		tasktest.Golden(t, name, []byte(b.String()))
	}
}

func TestWithoutDocker(t *testing.T) {
	t.Parallel()
	const rules = `*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.18.0.0/16 ! -o br-0123456789ab -j MASQUERADE
-A POSTROUTING -s 10.1.0.0/16 ! -o br-int -j MASQUERADE
COMMIT
*filter
:FORWARD ACCEPT [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
`
	const want = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
-A POSTROUTING -s 10.1.0.0/16 ! -o br-int -j MASQUERADE
COMMIT
*filter
:FORWARD ACCEPT [0:0]
COMMIT
`
	if got, changed := task.WithoutRules(rules, isDocker); got != want || !changed {
		t.Errorf("got changed %v:\n%s", changed, got)
	}
	for name, want := range map[string]bool{
		"docker0": true, "br-0123456789ab": true, "br-0123456789ag": false,
		"br-int": false, "br-lan": false, "cni0": false,
	} {
		if isDockerBridge(name) != want {
			t.Errorf("%s is Docker's: %t", name, !want)
		}
	}
}

// TestContainerdReadsConfig gives the configuration with a drop-in to a real containerd, in PATH or as the lab built
// it, and reads the configuration that containerd prints. containerd 1.x replaces the whole section of a plugin by
// that of a drop-in.
func TestContainerdReadsConfig(t *testing.T) {
	t.Parallel()
	for _, program := range containerds(t) {
		out, err := exec.CommandContext(t.Context(), program, "--version").Output()
		if err != nil {
			continue
		}
		c, format, plugin := tasktest.Cluster(t, classes), 3, "io.containerd.cri.v1.runtime"
		if fields := strings.Fields(string(out)); len(fields) < 3 ||
			strings.HasPrefix(strings.TrimPrefix(fields[2], "v"), "1.") {
			c, format, plugin = tasktest.Cluster(t, strings.Replace(classes, "cri:", "cri:\n  version: v1.7.30", 1)), 2,
				"io.containerd.grpc.v1.cri"
		}
		dump := func(dropIn string) string {
			dir := t.TempDir()
			config, err := containerdConfig(c)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(config), containerdDropIns, dir)
			for name, data := range map[string]string{"config.toml.main": text, "99-site.toml": dropIn} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := exec.CommandContext(t.Context(), program, "--config", filepath.Join(dir, "config.toml.main"),
				"config", "dump").CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", out, err, got)
			}
			return string(got)
		}
		alone := dump("")
		for _, want := range []string{
			"/usr/bin/nvidia-container-runtime", "/opt/kata/bin/containerd-shim-kata-v2",
			"/etc/containerd/certs.d", "pause:3.10.1", "runtimes.gvisor",
		} {
			if !strings.Contains(alone, want) {
				t.Errorf("%s has not read %s:\n%s", out, want, alone)
			}
		}
		both := dump(fmt.Sprintf(
			"version = %d\n[plugins.%q.containerd.runtimes.site]\n  runtime_type = \"io.containerd.runc.v2\"\n", format,
			plugin))
		if !strings.Contains(both, "runtimes.site]") ||
			strings.Contains(both, "/etc/containerd/certs.d") != (format == 3) {
			t.Errorf("%s with a drop-in:\n%s", out, both)
		}
	}
}

// containerds returns the programs of that name on this machine.
func containerds(t *testing.T) []string {
	t.Helper()
	var found []string
	if path, err := exec.LookPath("containerd"); err == nil {
		found = append(found, path)
	}
	if cache, err := os.UserCacheDir(); err == nil {
		built, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "containerd-*", "containerd"))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, built...)
	}
	if len(found) == 0 {
		t.Skip("containerd is not there: install Debian's, or run make lab")
	}
	return found
}

// TestFilesAreLimited: with an unlimited number of descriptors, which is a billion, programs that close them all
// never end.
func TestFilesAreLimited(t *testing.T) {
	t.Parallel()
	for name, unit := range map[string]string{
		"containerd": containerdUnitText, "docker": DockerUnitText(),
		"cri-docker": criDockerUnitText, "crio": crioUnitText,
	} {
		_, limit, _ := strings.Cut(unit, "\nLimitNOFILE=")
		limit, _, _ = strings.Cut(limit, "\n")
		_, hard, both := strings.Cut(limit, ":")
		if !both {
			hard = limit
		}
		if n, err := strconv.Atoi(hard); err != nil || n > 1<<20 {
			t.Errorf("%s: LimitNOFILE=%s", name, limit)
		}
	}
}
