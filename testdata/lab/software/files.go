package software

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
)

// The code that assembles the upstream's content, as part of the key of what it makes.
//
//go:embed layers.go images.go specs.go files.go charts.go kubernetes.go flannel.go arches.go
var assembly embed.FS

// upstream assembles the content that package upstream serves: registry/ is the registry's storage, files/ has a
// directory for each upstream host, images.json lists the images.
func (b *builder) upstream(ctx context.Context, small bool) (string, error) {
	inputs := []any{b.bin, b.arches, small}
	for _, fsys := range []embed.FS{assembly, sources} {
		entries, err := folder(fsys, ".", "")
		if err != nil {
			return "", err
		}
		inputs = append(inputs, entries)
	}
	key, err := keyOf(inputs...)
	if err != nil {
		return "", err
	}
	name := "upstream"
	if small {
		name = "upstream-small"
	}
	return b.output(name, key, func(tmp string) error {
		files := fileSet{b: b, dir: filepath.Join(tmp, "files")}
		if err := files.publish(ctx, small); err != nil {
			return err
		}
		published, err := b.images(ctx, filepath.Join(tmp, "registry"), small)
		if err != nil {
			return err
		}
		list, err := json.MarshalIndent(published, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(tmp, "images.json"), append(list, '\n'), 0o644)
	})
}

// fileSet publishes files under the paths that they have on their upstream hosts.
type fileSet struct {
	b   *builder
	dir string
}

func (f fileSet) publish(ctx context.Context, small bool) error {
	if small {
		for _, arch := range arches() {
			if err := f.labapp(arch); err != nil {
				return err
			}
		}
		return f.charts(ctx, small)
	}
	for _, arch := range f.b.arches {
		if err := errors.Join(f.containerd(arch, "containerd", ContainerdVersion), f.cni(arch),
			f.registry(arch)); err != nil {
			return err
		}
	}
	return errors.Join(OwnRelease().publish(f, f.b.arches), f.runc(f.b.arches), f.charts(ctx, small))
}

// kubernetes has the bare digest in NAME.sha256, without a name or a newline.
func (f fileSet) kubernetes(arch string, r KubernetesRelease) error {
	for _, c := range []string{"kubeadm", "kubelet", "kubectl"} {
		to := path.Join("dl.k8s.io/release", r.Version, "bin/linux", arch, c)
		sum, err := f.link(to, f.b.command(r.recipe("kubernetes"), arch, c))
		if err != nil {
			return err
		}
		if err := f.text(to+".sha256", sum); err != nil {
			return err
		}
	}
	return nil
}

// containerd is published as upstream's static archive: the lab's programs are built without cgo.
func (f fileSet) containerd(arch, recipe, version string) error {
	entries := []entry{{Name: "bin/"}}
	for _, c := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		entries = append(entries, entry{Name: "bin/" + c, From: f.b.command(recipe, arch, c)})
	}
	file := fmt.Sprintf("containerd-static-%s-linux-%s.tar.gz", strings.TrimPrefix(version, "v"), arch)
	return f.archive(githubRelease("containerd/containerd", version, file), ".sha256sum", entries)
}

// runc lists the digests of all files of a release in one file, which its maintainers sign in clear.
func (f fileSet) runc(arches []string) error {
	lines := ""
	for _, arch := range arches {
		sum, err := f.link(githubRelease("opencontainers/runc", RuncVersion, "runc."+arch),
			f.b.command("runc", arch, "runc"))
		if err != nil {
			return err
		}
		lines += sum + "  runc." + arch + "\n"
	}
	other := sha256.Sum256([]byte("runc.tar.xz"))
	signed, err := clearSign(lines + hex.EncodeToString(other[:]) + "  runc.tar.xz\n")
	if err != nil {
		return err
	}
	return f.text(githubRelease("opencontainers/runc", RuncVersion, "runc.sha256sum"), signed)
}

func (f fileSet) cni(arch string) error {
	entries := []entry{{Name: "./"}}
	for name := range cni().Packages {
		entries = append(entries, entry{Name: "./" + name, From: f.b.command("cni", arch, name)})
	}
	entries = append(entries, entry{Name: "./LICENSE", Text: "Apache License 2.0\n"},
		entry{Name: "./README.md", Text: "CNI plugins, built for the kkbundle lab\n"})
	file := fmt.Sprintf("cni-plugins-linux-%s-%s.tgz", arch, CNIVersion)
	return f.archive(githubRelease("containernetworking/plugins", CNIVersion, file), ".sha256", entries)
}

// etcd lists the digests of a release in one file.
func (f fileSet) etcd(arches []string, version, server string, r KubernetesRelease) error {
	lines := ""
	for _, arch := range arches {
		line, err := f.etcdArchive(arch, version, server, r)
		if err != nil {
			return err
		}
		lines += line
	}
	return f.text(githubRelease("etcd-io/etcd", version, "SHA256SUMS"), lines)
}

// etcdArchive has its commands in a directory that is named like it, and returns its digest as sha256sum prints it.
// The server is of a recipe, and the tools are the release's.
func (f fileSet) etcdArchive(arch, version, server string, r KubernetesRelease) (string, error) {
	name := "etcd-" + version + "-linux-" + arch
	entries := []entry{
		{Name: name + "/"},
		{Name: name + "/README.md", Text: "etcd, built for the kkbundle lab\n"},
		{Name: name + "/etcd", From: f.b.command(server, arch, "etcd")},
	}
	for _, c := range []string{"etcdctl", "etcdutl"} {
		entries = append(entries, entry{Name: name + "/" + c, From: f.b.command(r.recipe(c), arch, c)})
	}
	to := githubRelease("etcd-io/etcd", version, name+".tar.gz")
	file, err := f.place(to)
	if err != nil {
		return "", err
	}
	if err := archive(file, entries); err != nil {
		return "", fmt.Errorf("publish %s: %w", to, err)
	}
	sum, err := sumOf(file)
	return sum + "  " + path.Base(to) + "\n", err
}

func (f fileSet) registry(arch string) error {
	entries := []entry{
		{Name: "LICENSE", Text: "Apache License 2.0\n"},
		{Name: "README.md", Text: "Distribution, built for the kkbundle lab\n"},
		{Name: "registry", From: f.b.command("registry", arch, "registry")},
	}
	file := fmt.Sprintf("registry_%s_linux_%s.tar.gz", strings.TrimPrefix(RegistryVersion, "v"), arch)
	return f.archive(githubRelease("distribution/distribution", RegistryVersion, file), ".sha256", entries)
}

func (f fileSet) labapp(arch string) error {
	entries := []entry{
		{Name: "README.md", Text: "The application of the kkbundle lab\n"},
		{Name: "labapp", From: f.b.command("labapp", arch, "labapp")},
	}
	file := fmt.Sprintf("labapp_%s_linux_%s.tar.gz", LabappVersion, arch)
	return f.archive(githubRelease("lab/labapp", "v"+LabappVersion, file), ".sha256", entries)
}

func githubRelease(project, version, file string) string {
	return path.Join("github.com", project, "releases/download", version, file)
}

// link publishes a file without copying it and returns its sha256 in hex.
func (f fileSet) link(to, from string) (string, error) {
	name, err := f.place(to)
	if err != nil {
		return "", err
	}
	if err := os.Link(from, name); err != nil {
		return "", fmt.Errorf("publish %s: %w", to, err)
	}
	return sumOf(name)
}

// archive publishes a .tar.gz and, beside it, its digest as sha256sum prints it.
func (f fileSet) archive(to, sumExt string, entries []entry) error {
	name, err := f.place(to)
	if err != nil {
		return err
	}
	if err := archive(name, entries); err != nil {
		return fmt.Errorf("publish %s: %w", to, err)
	}
	sum, err := sumOf(name)
	if err != nil {
		return err
	}
	return f.text(to+sumExt, sum+"  "+path.Base(to)+"\n")
}

func (f fileSet) text(to, text string) error {
	name, err := f.place(to)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

func (f fileSet) place(to string) (string, error) {
	name := filepath.Join(f.dir, filepath.FromSlash(to))
	return name, os.MkdirAll(filepath.Dir(name), 0o755)
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest of %s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// clearSign signs text with a key made for it: whoever reads it has to cope with the armour, not to trust the key.
func clearSign(text string) (string, error) {
	key, err := openpgp.NewEntity("kkbundle lab", "", "lab@example.invalid", nil)
	if err != nil {
		return "", fmt.Errorf("key for signing: %w", err)
	}
	var out bytes.Buffer
	w, err := clearsign.Encode(&out, key.PrivateKey, nil)
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	_, writeErr := io.WriteString(w, text)
	if err := errors.Join(writeErr, w.Close()); err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	return out.String() + "\n", nil
}
