//go:build linux

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/manifest"
)

// An rpmHost is a host of an RPM distribution as far as this machine can be one: the real dnf and rpm with their own
// root, and the host's /etc/dnf/dnf.conf. What stands in: the distribution, whose packages are built here.
type rpmHost struct {
	*sitetest.Rooted
	out *bytes.Buffer // of dnf
}

// buildRPM builds a package of one file with rpmbuild, and returns its path. fields are lines of its spec.
func buildRPM(t *testing.T, name, version string, fields ...string) string {
	t.Helper()
	dir := t.TempDir()
	spec := fmt.Sprintf("Name: %s\nVersion: %s\nRelease: 1\nSummary: test\nLicense: MIT\nBuildArch: noarch\n%s\n%%description\nx\n"+
		"%%install\nmkdir -p %%{buildroot}/usr/share/kk\necho %s >%%{buildroot}/usr/share/kk/%s\n%%files\n/usr/share/kk/%s\n", name, version, strings.Join(fields, "\n"), version, name, name)
	if err := os.WriteFile(dir+"/one.spec", []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"dnf", "rpm", "rpmbuild"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			t.Skip("a host with packages needs root and ", program)
		}
	}
	runProgram(t, "rpmbuild", "-bb", "--define", "_topdir "+dir, "--define", "_rpmdir "+dir+"/out", dir+"/one.spec")
	files, err := filepath.Glob(dir + "/out/noarch/*.rpm")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

func runProgram(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

func newRPMHost(t *testing.T, h *sitetest.Rooted) *rpmHost {
	t.Helper()
	r := &rpmHost{Rooted: h, out: &bytes.Buffer{}}
	h.Mkdir(t, "var/log")
	h.Put(t, "/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\n")
	h.Put(t, "/etc/yum.repos.d/site.repo", "[baseos]\nname=baseos\nbaseurl=http://mirror.invalid/baseos\n")
	h.Answer("dnf", r.dnf)
	h.Answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error {
		if cmd.Args[1] != "facts" {
			return h.Helper(ctx, cmd)
		}
		var question node.Probe
		if err := json.NewDecoder(cmd.Stdin).Decode(&question); err != nil {
			return err
		}
		facts := node.Facts{
			Version: node.FactsVersion, OS: node.OSRelease{ID: "rocky", VersionID: "9.4"},
			SELinux: "enforcing", Packages: map[string]string{},
		}
		for _, name := range question.Packages {
			if out, err := exec.CommandContext(ctx, "rpm", "--root", h.Root, "-q", "--qf", "%{VERSION}",
				name).Output(); err == nil {
				facts.Packages[name] = string(out)
			}
		}
		return json.NewEncoder(cmd.Stdout).Encode(facts)
	})
	return r
}

// Run answers which package manager there is.
func (r *rpmHost) Run(ctx context.Context, cmd host.Cmd) error {
	args := host.WithoutText(cmd.Args)
	if args[0] != "has-commands.sh" {
		return r.Rooted.Run(ctx, cmd)
	}
	if args[1] == "dnf" {
		return nil
	}
	return sitetest.Exits(cmd, 1, "")
}

// dnf runs the real dnf for the host's root, whose paths begin there. Scripts of packages do not run: the root has no
// shell.
func (r *rpmHost) dnf(ctx context.Context, cmd host.Cmd) error {
	repo := filepath.Join(r.Root, marks.Packages, "repos/kkbundle.repo")
	if text, err := os.ReadFile(repo); err == nil {
		moved := strings.ReplaceAll(string(text), "file://"+marks.Packages, "file://"+r.Root+marks.Packages)
		if err := os.WriteFile(repo, []byte(moved), 0o600); err != nil {
			return err
		}
	}
	args := []string{
		"--installroot=" + r.Root, "--config=" + r.Root + "/etc/dnf/dnf.conf", "--releasever=9",
		"--setopt=tsflags=noscripts", "--setopt=logdir=" + r.Root + "/var/log",
	}
	for _, a := range cmd.Args[1:] {
		args = append(args, strings.ReplaceAll(a, "="+marks.Packages, "="+r.Root+marks.Packages))
	}
	command := exec.CommandContext(ctx, "dnf", args...)
	command.Env = append(os.Environ(), "LC_ALL=C")
	out, err := command.CombinedOutput()
	r.out.Write(out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return sitetest.Exits(cmd, exit.ExitCode(), string(out))
	}
	return err
}

// version returns the version of an installed package, "" if it is not installed.
func (r *rpmHost) version(name string) string {
	return strings.TrimSpace(r.Content("/usr/share/kk/" + name))
}

// rpmSite has one host, and a bundle with packages for its distribution. The host's roles need socat,
// container-selinux and others, of which the bundle has those given.
func rpmSite(t *testing.T, files ...string) (*sitetest.Site, *rpmHost, func() error) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1")
	h := newRPMHost(t, s.Hosts["cp1"])
	b := bundletest.NewBuilder(t)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		b.File(manifest.PackageRef("rocky/9", name), name, &ocispec.Platform{OS: "linux", Architecture: "amd64"}, data)
	}
	opened := b.Bundle().Reader
	return s, h, func() error {
		r := s.Run(t, opened)
		r.Hosts[0].Conn = h
		return engineRun(t, r)
	}
}

func engineRun(t *testing.T, r *engine.Run) error {
	t.Helper()
	return r.Phases(t.Context(), packagePhases(r.Cluster))
}

// nodePackages builds what nodes of Rocky 9 need, besides socat and those given.
func nodePackages(t *testing.T, without ...string) []string {
	t.Helper()
	var files []string
	for _, name := range []string{
		"chrony", "conntrack-tools", "container-selinux", "ebtables", "ethtool", "iproute",
		"iptables",
	} {
		if !strings.Contains(strings.Join(without, " "), name) {
			files = append(files, buildRPM(t, name, "1.0"))
		}
	}
	return files
}

// TestRPMHostInstallsPackages installs a set with a dependency by the real dnf, on a host whose configuration wants
// signatures of packages and of repositories; run again, nothing changes. A dependency that the host has newer stays.
func TestRPMHostInstallsPackages(t *testing.T) {
	t.Parallel()
	s, h, run := rpmSite(t, append(nodePackages(t), buildRPM(t, "socat", "1.7", "Requires: kk-lib >= 2",
		"Recommends: kk-weak"),
		buildRPM(t, "kk-lib", "2.0"), buildRPM(t, "kk-weak", "1"))...)
	h.Put(t, "/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\nrepo_gpgcheck=1\nlocalpkg_gpgcheck=1\n")
	runProgram(t, "rpm", "--root", h.Root, "--install", "--noscripts", buildRPM(t, "kk-lib", "3.0"))
	if err := run(); err != nil {
		t.Fatalf("%v\n%s", err, h.out)
	}
	if h.version("socat") != "1.7" || h.version("container-selinux") != "1.0" || h.version("kk-lib") != "3.0" ||
		h.version("kk-weak") != "" {
		t.Errorf("socat %q, container-selinux %q, kk-lib %q, kk-weak %q\n%s", h.version("socat"),
			h.version("container-selinux"), h.version("kk-lib"), h.version("kk-weak"), h.out)
	}
	if _, err := os.Stat(h.Root + marks.Packages); err == nil || h.Content("/etc/yum.repos.d/site.repo") == "" {
		t.Error("the host's repositories are gone, or packages are left")
	}
	s.States()
	h.out.Reset()
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.States(), ", "); got != "os-packages@cp1 done" || h.out.Len() > 0 {
		t.Errorf("again: %s\n%s", got, h.out)
	}
}

// TestRPMHostKeepsNewerPackage has a package of the set that the host has in a newer version already.
func TestRPMHostKeepsNewerPackage(t *testing.T) {
	t.Parallel()
	_, h, run := rpmSite(t, append(nodePackages(t), buildRPM(t, "socat", "1.7"))...)
	runProgram(t, "rpm", "--root", h.Root, "--install", "--noscripts", buildRPM(t, "socat", "1.8"))
	if err := run(); err != nil {
		t.Fatalf("%v\n%s", err, h.out)
	}
	if h.version("socat") != "1.8" || h.version("iptables") != "1.0" {
		t.Errorf("socat %q, iptables %q", h.version("socat"), h.version("iptables"))
	}
}

// TestRPMHostNamesMissingDependency has a bundle without a package that another needs: the error names both.
func TestRPMHostNamesMissingDependency(t *testing.T) {
	t.Parallel()
	_, h, run := rpmSite(t, append(nodePackages(t), buildRPM(t, "socat", "1.7", "Requires: kk-none >= 4"))...)
	err := run()
	if err == nil || !strings.Contains(err.Error(), "kk-none >= 4") || !strings.Contains(err.Error(), "socat-1.7") {
		t.Errorf("got %v", err)
	}
	if h.version("iptables") != "" {
		t.Error("a part of the set was installed")
	}
}

// TestRPMHostInstallsPackagesOfModules has a package of a module, as container-selinux is one of container-tools in
// release 8. The bundle has no list of modules, without which dnf refuses such packages.
func TestRPMHostInstallsPackagesOfModules(t *testing.T) {
	t.Parallel()
	_, h, run := rpmSite(t, append(nodePackages(t, "container-selinux"), buildRPM(t, "socat", "1.7"),
		buildRPM(t, "container-selinux", "2.229.0",
			"ModularityLabel: container-tools:rhel8:8100020240808093819:afee755d"))...)
	if err := run(); err != nil {
		t.Fatalf("%v\n%s", err, h.out)
	}
	if h.version("container-selinux") != "2.229.0" {
		t.Errorf("container-selinux %q\n%s", h.version("container-selinux"), h.out)
	}
}
