package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
	"github.com/kkbundle/kkbundle/testdata/lab/vm"
)

// TestVMArches installs one cluster of both architectures from one bundle: an amd64 control plane in a namespace, and
// an arm64 worker that is a virtual machine with Debian's own kernel.
func TestVMArches(t *testing.T) {
	v := bootVM(t, scenario{
		hosts: 2, with: []software.Extra{software.BothArches},
		groups: hosts.Groups{"kube_control_plane": {1}, "etcd": {1}, "image_registry": {1}, "kube_worker": {2}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "manifest.yaml"), "platforms: [linux/amd64]",
				"platforms: [linux/amd64, linux/arm64]")
		},
	}, "arm64", vm.Options{Containers: []int{1}, Memory: 2048})
	v.nodes, v.pristine = 2, v.traces(t)
	steps(t, []step{
		{"build", v.makeBundle},
		{"precheck and install refuse a bundle without arm64, and name the host", v.oneArch},
		{"install ends verified", v.installs},
		{"each host has programs and images of its architecture", v.arches},
		{"the cluster works in both directions", v.cluster},
		{"a rerun changes nothing", v.rerun},
		{"reset leaves nothing, and everything as it was", v.reset},
		{"no packet left the hosts' network", v.packets},
	})
}

// oneArch tries a bundle that has amd64 alone.
func (v *virtual) oneArch(t *testing.T) {
	both := filepath.Join(v.dir, "both.kkb")
	if err := os.Rename(v.bundle(), both); err != nil {
		t.Fatal(err)
	}
	v.connected(t, "copy", both, "--platform", "linux/amd64", "-o", v.bundle()).must(t, 0)
	const refused = 12
	r := run(t, v.site(t, "precheck")).must(t, refused)
	for _, want := range []string{
		"host2", "arm64, the bundle has amd64",
		"build the bundle with this platform in platforms",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}
	const sentence = "the bundle has nothing for arm64, the architecture of host2: it was built for amd64"
	if r := run(t, v.site(t, "install")); r.code == 0 || !strings.Contains(r.stderr, sentence) {
		t.Errorf("install: exit code %d, want a refusal that says: %s\n%s", r.code, sentence, r.stderr)
	}
	if files := v.on(t, 2, "ls /usr/local/bin /etc/containerd /etc/kubernetes 2>/dev/null; true"); strings.Contains(files, "kube") || strings.Contains(files, "containerd") {
		t.Errorf("the refused install has put on host2:\n%s", files)
	}
	if err := os.Rename(both, v.bundle()); err != nil {
		t.Fatal(err)
	}
}

// arches looks at what each host got.
func (v *virtual) arches(t *testing.T) {
	// The machine of an ELF file is in its bytes 18 and 19.
	const programs = `for f in /usr/local/bin/* /usr/local/sbin/* /opt/cni/bin/* /var/lib/kkbundle/bin/kkbundle-node; do
		[ "$(head -c 4 "$f" 2>/dev/null | tr -d '\0')" = "$(printf '\177ELF')" ] && echo "$f $(od -An -tu2 -j18 -N2 "$f" | tr -d ' ')"; done; true`
	images := map[int][]string{}
	for number, want := range map[int]struct{ arch, machine string }{1: {"amd64", "62"}, 2: {"arm64", "183"}} {
		list := strings.Split(strings.TrimSpace(v.on(t, number, programs)), "\n")
		names := ""
		for _, line := range list {
			if names += field(line, 0) + "\n"; field(line, 1) != want.machine {
				t.Errorf("host%d, which is %s: %s is for ELF machine %s", number, want.arch, field(line, 0),
					field(line, 1))
			}
		}
		for _, program := range []string{
			"/kubelet", "/kubectl", "/kubeadm", "/containerd", "/containerd-shim-runc-v2",
			"/runc", "/bridge", "/flannel", "/kkbundle-node",
		} {
			if !strings.Contains(names, program+"\n") {
				t.Errorf("host%d has no program %s:\n%s", number, program, names)
			}
		}
		if label := v.kubectl(t, fmt.Sprintf("get node host%d", number)+
			" -o jsonpath='{.metadata.labels.kubernetes\\.io/arch}'"); label != want.arch {
			t.Errorf("host%d calls itself %s", number, label)
		}
		images[number] = strings.Fields(v.on(t, number,
			`ctr -n k8s.io images ls 2>/dev/null | awk '/^docker.io\/lab\/labapp:1 /{print $3}'`))
	}
	if len(images[1]) != 1 || !slices.Equal(images[1], images[2]) {
		t.Errorf("the hosts have pulled different indexes of the application: %v", images)
	}
}
