package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRPMPackagesAreFoundByWhatTheyProvide has a package under another name, as iptables-nft is iptables in Red Hat's
// release 9, in a database of the real rpm.
func TestRPMPackagesAreFoundByWhatTheyProvide(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"rpm", "rpmbuild"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs ", program)
		}
	}
	dir := t.TempDir()
	must := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	for name, provides := range map[string]string{"kk-iptables-nft": "Provides: kk-iptables = 1.8.10\nProvides: kk-ebtables", "kk-socat": ""} {
		spec := fmt.Sprintf("Name: %s\nVersion: 1.8.10\nRelease: 2.el9\nSummary: test\nLicense: MIT\nBuildArch: noarch\n%s\n%%description\nx\n%%files\n", name, provides)
		if err := os.WriteFile(dir+"/"+name+".spec", []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		must("rpmbuild", "-bb", "--define", "_topdir "+dir, "--define", "_rpmdir "+dir+"/out", name+".spec")
	}
	files, err := filepath.Glob(dir + "/out/noarch/*.rpm")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	must(append([]string{"rpm", "--dbpath", dir + "/db", "--install", "--justdb", "--nodeps"}, files...)...)
	root := makeRoot(t, map[string]string{"/usr/bin/rpm": ""})
	if err := os.Chmod(root+"/usr/bin/rpm", 0o755); err != nil {
		t.Fatal(err)
	}
	c := &survey{system: system{root: root, run: func(ctx context.Context, args ...string) ([]byte, error) {
		return runProgram(ctx, append([]string{args[0], "--dbpath", dir + "/db"}, args[1:]...)...)
	}}, probe: Probe{Packages: []string{"kk-socat", "kk-iptables", "kk-ebtables", "kk-none"}}}
	softwareCollector{c}.packages(t.Context())
	want := map[string]string{"kk-socat": "1.8.10-2.el9", "kk-iptables": "1.8.10-2.el9", "kk-ebtables": "1.8.10-2.el9"}
	if diff := cmp.Diff(want, c.facts.Packages); diff != "" || len(c.problems) > 0 {
		t.Errorf("%q (-want +got):\n%s", c.problems, diff)
	}
}
