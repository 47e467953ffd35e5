package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// distFile returns a file of the release in $KKBUNDLE_DIST, which `make dist-try` sets.
func distFile(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("KKBUNDLE_DIST")
	if dir == "" {
		t.Skip("make dist-try runs this test with a release")
	}
	file := filepath.Join(dir, name)
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	return file
}

// output runs a command and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "MANPAGER=cat", "MANWIDTH=100", "LC_ALL=C.UTF-8")
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, problem.Bytes())
	}
	return string(out)
}

// checkInstalled runs the program below root, reads its manual pages and completes a command with its script.
func checkInstalled(t *testing.T, root string) {
	t.Helper()
	program := filepath.Join(root, "usr/bin/kkbundle")
	if out := output(t, program, "version"); !strings.HasPrefix(out, "kkbundle ") || strings.Contains(out, "unknown") {
		t.Errorf("version: %s", out)
	}
	page := output(t, "man", "-l", filepath.Join(root, "usr/share/man/man1/kkbundle-build.1.gz"))
	for _, want := range []string{"KKBUNDLE-BUILD(1)", "SYNOPSIS", "--locked", "EXAMPLE"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of build lacks %q:\n%s", want, page)
		}
	}
	// Angle brackets, and lines that are set apart.
	if page := output(t, "man", "-l",
		filepath.Join(root, "usr/share/man/man1/kkbundle-push.1.gz")); !strings.Contains(page, "HOST[/PREFIX]/<") {
		t.Errorf("the page of push lacks the names:\n%s", page)
	}
	for _, name := range []string{"kkbundle.1.gz", "kkbundle-registry-install.1.gz"} {
		output(t, "man", "-l", filepath.Join(root, "usr/share/man/man1", name))
	}
	// The words of a command line as bash hands them to a completion; the program is found in PATH.
	script := `PATH="$1/usr/bin:$PATH"
		source "$1/usr/share/bash-completion/completions/kkbundle"
		_get_comp_words_by_ref() { cur=insp prev=kkbundle; words=(kkbundle insp); cword=1; }
		COMP_LINE="kkbundle insp" COMP_POINT=13 COMP_WORDS=(kkbundle insp) COMP_CWORD=1 COMP_TYPE=9
		complete -p kkbundle >/dev/null
		__start_kkbundle
		printf '%s\n' "${COMPREPLY[@]}"`
	if out := output(t, "bash", "-uc", strings.ReplaceAll(script, "\t", ""), "bash", root); !strings.HasPrefix(out,
		"inspect") {
		t.Errorf("completion of insp: %q", out)
	}
}

// TestDistDeb installs the deb with dpkg below a root of its own.
func TestDistDeb(t *testing.T) {
	deb := distFile(t, "kkbundle-linux-amd64.deb")
	root := t.TempDir()
	admin := filepath.Join(root, "var/lib/dpkg")
	for _, dir := range []string{"info", "updates", "triggers"} {
		if err := os.MkdirAll(filepath.Join(admin, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(admin, "status"), nil)
	output(t, "dpkg", "--root="+root, "--log=/dev/null", "--force-architecture", "--install", deb)
	if out := output(t, "dpkg-query", "--admindir="+admin, "--show", "--showformat=${Status} ${Architecture}",
		"kkbundle"); out != "install ok installed amd64" {
		t.Errorf("dpkg has it as %q", out)
	}
	checkInstalled(t, root)
	log := filepath.Join(root, "usr/share/doc/kkbundle/changelog.Debian.gz")
	if out := output(t, "gzip", "-dc", log); !strings.HasPrefix(out, "kkbundle (") ||
		!strings.Contains(out, ") unstable; urgency=low\n") || !strings.Contains(out, "/CHANGELOG.md") {
		t.Errorf("the changelog is\n%s", out)
	}
	output(t, "dpkg", "--root="+root, "--log=/dev/null", "--purge", "kkbundle")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/kkbundle")); err == nil {
		t.Error("dpkg --purge leaves the program")
	}
}

// TestDistRPM installs the rpm with Debian's rpm below a root of its own. No distribution with rpm was there to
// install it.
func TestDistRPM(t *testing.T) {
	rpm := distFile(t, "kkbundle-linux-amd64.rpm")
	list := output(t, "rpm", "-qlp", rpm)
	for _, want := range []string{
		"/usr/bin/kkbundle", "/usr/share/man/man1/kkbundle.1.gz",
		"/usr/share/zsh/site-functions/_kkbundle", "/usr/share/licenses/kkbundle/LICENSE",
	} {
		if !strings.Contains(list, want+"\n") {
			t.Errorf("the rpm lacks %s:\n%s", want, list)
		}
	}
	if out := output(t, "rpm", "-qp", "--changelog", rpm); !strings.Contains(out, "/CHANGELOG.md") {
		t.Errorf("the changelog is\n%s", out)
	}
	output(t, "rpm", "-K", "--nosignature", rpm)
	root := t.TempDir()
	output(t, "rpm", "--root", root, "--initdb")
	output(t, "rpm", "--root", root, "-i", "--nodeps", "--ignorearch", rpm)
	output(t, "rpm", "--root", root, "--verify", "--nodeps", "kkbundle")
	checkInstalled(t, root)
	output(t, "rpm", "--root", root, "-e", "kkbundle")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/kkbundle")); err == nil {
		t.Error("rpm -e leaves the program")
	}
}

// TestDistArm64 looks into the packages for arm64, which this machine cannot run: their architecture, and that of
// their program.
func TestDistArm64(t *testing.T) {
	deb, rpm := distFile(t, "kkbundle-linux-arm64.deb"), distFile(t, "kkbundle-linux-arm64.rpm")
	if out := output(t, "dpkg-deb", "--field", deb, "Architecture"); out != "arm64\n" {
		t.Errorf("the deb is for %s", out)
	}
	if out := output(t, "rpm", "-qp", "--queryformat=%{ARCH}", rpm); out != "aarch64" {
		t.Errorf("the rpm is for %s", out)
	}
	fromDeb, fromRPM := t.TempDir(), t.TempDir()
	output(t, "dpkg-deb", "--extract", deb, fromDeb)
	output(t, "rpm", "--root", fromRPM, "--initdb")
	output(t, "rpm", "--root", fromRPM, "-i", "--nodeps", "--ignorearch", rpm)
	for _, root := range []string{fromDeb, fromRPM} {
		f, err := elf.Open(filepath.Join(root, "usr/bin/kkbundle"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != elf.EM_AARCH64 {
			t.Errorf("the program is for %s", f.Machine)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDistImage reads the image as an OCI archive and as Docker's archive with skopeo, runs its program with nothing
// but the image's files, and carries the image in a bundle to a registry.
func TestDistImage(t *testing.T) {
	file := distFile(t, image)
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is run as amd64")
	}
	program := distFile(t, "kkbundle-linux-amd64")
	dir := t.TempDir()
	layout := filepath.Join(dir, "layout")
	if err := os.Mkdir(layout, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, "tar", "-C", layout, "-xf", file)
	tag := imageTag(t, layout)
	unpacked := filepath.Join(dir, "docker")
	output(t, "skopeo", "copy", "--override-arch", "amd64", "docker-archive:"+file+":"+imageName+":"+tag+"-amd64",
		"dir:"+unpacked)
	output(t, "skopeo", "copy", "--all", "oci-archive:"+file+":"+tag, "dir:"+filepath.Join(dir, "all"))
	config := output(t, "skopeo", "inspect", "--config", "--raw", "--override-arch", "amd64", "oci-archive:"+file+":"+
		tag)
	if !strings.Contains(config, `"Entrypoint":["/usr/bin/kkbundle"]`) {
		t.Errorf("config: %s", config)
	}

	root := filepath.Join(dir, "root")
	output(t, "skopeo", "copy", "--override-arch", "amd64", "oci-archive:"+file+":"+tag, "oci:"+
		filepath.Join(dir, "one")+":one")
	unpackLayers(t, filepath.Join(dir, "one"), root)
	if out := output(t, "chroot", root, "/usr/bin/kkbundle", "version"); !strings.HasPrefix(out, "kkbundle ") {
		t.Errorf("version in the image: %s", out)
	}
	authorities, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || bytes.Count(authorities, []byte("BEGIN CERTIFICATE")) < 50 {
		t.Errorf("certificate authorities: %v, %d bytes", err, len(authorities))
	}

	// The digest names the content, so the layout serves in place of a registry that does not exist.
	index := indexDigest(t, layout)
	write(t, filepath.Join(dir, "manifest.yaml"),
		[]byte("apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: own, version: 1.0.0}\n"+
			"platforms: [linux/amd64, linux/arm64]\nreferrers: none\nsources: [{directory: layout}]\nimages: ['registry.invalid/kkbundle:"+tag+"@"+index.String()+"']\n"))
	t.Setenv("KKBUNDLE_CACHE", filepath.Join(dir, "cache"))
	output(t, program, "build", "-o", filepath.Join(dir, "own.kkb"), filepath.Join(dir, "manifest.yaml"))
	site := registrytest.Start(t, registrytest.Options{})
	output(t, program, "push", "--plain-http", "--registry", site.Host, filepath.Join(dir, "own.kkb"))
	if have := output(t, "skopeo", "inspect", "--raw", "--tls-verify=false", "docker://"+site.Host+
		"/registry.invalid/kkbundle:"+tag); digest.FromString(have) != index {
		t.Errorf("the registry has another image:\n%s", have)
	}
}

// TestDistProvider runs the programs in the image of Cluster API's provider with nothing but the image's files.
func TestDistProvider(t *testing.T) {
	file := distFile(t, providerImage)
	if runtime.GOARCH != "amd64" {
		t.Skip("the programs are run as amd64")
	}
	dir := t.TempDir()
	layout, root := filepath.Join(dir, "layout"), filepath.Join(dir, "root")
	if err := os.Mkdir(layout, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, "tar", "-C", layout, "-xf", file)
	from := "oci-archive:" + file + ":" + imageTag(t, layout)
	config := output(t, "skopeo", "inspect", "--config", "--raw", "--override-arch", "amd64", from)
	for _, want := range []string{`"Entrypoint":["/usr/bin/manager"]`, `"User":"65532:65532"`} {
		if !strings.Contains(config, want) {
			t.Errorf("config: %s", config)
		}
	}
	output(t, "skopeo", "copy", "--override-arch", "amd64", from, "oci:"+filepath.Join(dir, "one")+":one")
	unpackLayers(t, filepath.Join(dir, "one"), root)
	output(t, "chroot", "--userspec=65532:65532", root, "/usr/bin/manager", "--help")
	if out := output(t, "chroot", "--userspec=65532:65532", root, "/usr/local/bin/kkbundle", "version"); !strings.HasPrefix(out,
		"kkbundle ") {
		t.Errorf("version in the image: %s", out)
	}
}

// imageTag returns the name of the layout's index.
func imageTag(t *testing.T, layout string) string {
	t.Helper()
	var top ocispec.Index
	readJSON(t, filepath.Join(layout, "index.json"), &top)
	return top.Manifests[0].Annotations[ocispec.AnnotationRefName]
}

func indexDigest(t *testing.T, layout string) digest.Digest {
	t.Helper()
	var top ocispec.Index
	readJSON(t, filepath.Join(layout, "index.json"), &top)
	return top.Manifests[0].Digest
}

// unpackLayers unpacks the only image of a layout.
func unpackLayers(t *testing.T, layout, root string) {
	t.Helper()
	var top ocispec.Index
	var m ocispec.Manifest
	readJSON(t, filepath.Join(layout, "index.json"), &top)
	readJSON(t, filepath.Join(layout, blobPath(top.Manifests[0])), &m)
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, layer := range m.Layers {
		output(t, "tar", "-C", root, "-xf", filepath.Join(layout, blobPath(layer)))
	}
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
