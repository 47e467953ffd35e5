package software

import (
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// An Extra is software that few scenarios need: it is made only where somebody asks for it.
type Extra string

// The extras.
const (
	Docker        Extra = "docker"         // Docker's archive of static programs
	DockerCompose Extra = "docker-compose" // the program, which is a plugin of Docker's too
	Containerd1   Extra = "containerd-1"   // containerd of the 1.7 line
	Containerd21  Extra = "containerd-2.1" // containerd of a line that has ended
	Harbor        Extra = "harbor"         // an installer of Harbor's shape, with a stand-in for Harbor in its images
	Addons        Extra = "addons"         // metrics-server, multus and local-path-provisioner: images and charts
	LocalPV       Extra = "localpv"        // images of OpenEBS's local volumes; its program and chart have to be given
	KubeVIP       Extra = "kube-vip"       // kube-vip's image with its own program, which has to be given
	Spegel        Extra = "spegel"         // Spegel's image with its own program, which has to be given
	BothArches    Extra = "both-arches"    // the cluster's own software for amd64 and arm64
)

// Versions of the extras. Docker's and Compose's are the catalog's; containerd is the newest 1.7 that the Go proxy has.
const (
	DockerVersion        = "v28.5.2"
	DockerComposeVersion = "v2.40.3"
	Containerd1Version   = "v1.7.35"
	Containerd21Version  = "v2.1.9" // the catalog's before Kubernetes 1.32
	HarborVersion        = "v2.14.2"
)

// Extras lists all extras.
func Extras() []Extra {
	return []Extra{
		Docker, DockerCompose, Containerd1, Harbor, Addons, LocalPV, KubeVIP, Spegel, BothArches, Containerd21,
		FlannelNext, Cilium, CiliumNext, Calico331, Calico332, Hybridnet, ManagementCluster, Kubernetes133, Kubernetes134, Kubernetes1344, Kubernetes135, Kubernetes137,
	}
}

// What an extra is made of besides is part of its key.
//
//go:embed extra.go
var extraSource string

// givenDir is where people put what cannot be built from modules, below the lab's directory.
const givenDir = "given"

// Given returns the place for a file that upstream publishes at url (without a scheme) and that the lab cannot build,
// and whether somebody has put it there.
func Given(url string) (file string, there bool, err error) {
	dir, err := DefaultDir()
	if err != nil {
		return "", false, err
	}
	file = filepath.Join(dir, givenDir, filepath.FromSlash(url))
	_, err = os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return file, false, nil
	}
	return file, err == nil, err
}

// extras makes what is asked for and returns a directory for each, which has a folder for each upstream host. What
// people have given comes last.
func (b *builder) extras(ctx context.Context, with []Extra) ([]string, error) {
	var dirs []string
	for _, e := range with {
		if !slices.Contains(Extras(), e) {
			return nil, fmt.Errorf("there is no extra %q: the extras are %q", e, Extras())
		}
		if e == BothArches && len(with) > 1 {
			return nil, fmt.Errorf("the extra %q is of the cluster's own software: it goes with no other", e)
		}
		if e.isImages() {
			continue
		}
		dir, err := b.extra(ctx, e)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return append(dirs, filepath.Join(b.dir, givenDir)), nil
}

// isImages holds if the upstream has no more files with the extra than a build has anyway, and what people have given.
func (e Extra) isImages() bool {
	_, isCalico := CalicoReleases()[e]
	return isCalico || e == Hybridnet || e == LocalPV || e == KubeVIP || e == Spegel || e == BothArches
}

func (b *builder) extra(ctx context.Context, e Extra) (string, error) {
	arch := runtime.GOARCH
	recipes := map[Extra][]recipe{
		Docker:        {dockerd(), dockerCLI(), containerd1(), runc()},
		DockerCompose: {dockerCompose()},
		Containerd1:   {containerd1()},
		Containerd21:  {containerd("containerd-2.1", Containerd21Version)},
		FlannelNext:   nextFlannel().recipes(),
		Harbor:        {own("harbor"), registry()},
		Addons:        {metricsServer(), multusPlugin(), localPath()},

		ManagementCluster: clusterAPIs(),
	}[e]
	release, isKubernetes := KubernetesReleases()[e]
	if isKubernetes {
		if err := release.matches(ctx, b); err != nil {
			return "", err
		}
		recipes = release.recipes()
	}
	network, isCilium := ciliumReleases()[e]
	if isCilium {
		recipes = network.recipes()
	}
	inputs := []any{e}
	for _, r := range recipes {
		if err := b.compileAll(ctx, []recipe{r}, arch); err != nil {
			return "", err
		}
		inputs = append(inputs, b.bin[r.Name+"-"+arch])
	}
	if e == ManagementCluster {
		state, err := b.checkoutState()
		if err != nil {
			return "", err
		}
		inputs = append(inputs, clusterAPISource, state)
	}
	key, err := keyOf(append(inputs, extraSource, kubernetesSource, flannelSource, ciliumSource)...)
	if err != nil {
		return "", err
	}
	return b.output("extra-"+string(e), key, func(tmp string) error {
		files := fileSet{b: b, dir: tmp}
		if isKubernetes {
			return release.publish(files, []string{arch})
		}
		if isCilium {
			return network.publish(ctx, files)
		}
		switch e {
		case Docker:
			return files.docker(ctx, arch)
		case DockerCompose:
			return files.dockerCompose(arch)
		case Harbor:
			return files.harbor(arch)
		case Addons:
			return files.addons(ctx)
		case ManagementCluster:
			return files.clusterAPI(ctx, arch)
		case FlannelNext:
			return nextFlannel().publish(ctx, files)
		case Containerd21:
			return files.containerd(arch, "containerd-2.1", Containerd21Version)
		}
		return files.containerd(arch, "containerd-1", Containerd1Version)
	})
}

// dockerd is built by the go.mod that its maintainers keep under another name.
func dockerd() recipe {
	const pkg = "github.com/docker/docker/dockerversion"
	return recipe{
		Name: "dockerd", Module: "github.com/docker/docker@" + DockerVersion + "+incompatible",
		Copy: []string{"."}, Remove: []string{"vendor"}, Rename: map[string]string{
			"vendor.mod": "go.mod",
			"vendor.sum": "go.sum",
		},
		Mod:     "mod",
		LDFlags: "-X " + pkg + ".Version=" + strings.TrimPrefix(DockerVersion, "v") + " -X " + pkg + ".GitCommit=lab",
		Packages: map[string]string{
			"dockerd": "./cmd/dockerd", "docker-proxy": "./cmd/docker-proxy",
		},
	}
}

func dockerCLI() recipe {
	const pkg = "github.com/docker/cli/cli/version"
	return recipe{
		Name: "docker", Module: "github.com/docker/cli@" + DockerVersion + "+incompatible",
		Copy: []string{"."}, Remove: []string{"vendor"}, Rename: map[string]string{
			"vendor.mod": "go.mod",
			"vendor.sum": "go.sum",
		},
		Mod:      "mod",
		LDFlags:  "-X " + pkg + ".Version=" + strings.TrimPrefix(DockerVersion, "v") + " -X " + pkg + ".GitCommit=lab",
		Packages: map[string]string{"docker": "./cmd/docker"},
	}
}

func dockerCompose() recipe {
	return recipe{
		Name: "docker-compose", Module: "github.com/docker/compose/v2@" + DockerComposeVersion, Mod: "readonly",
		LDFlags:  "-X github.com/docker/compose/v2/internal.Version=" + DockerComposeVersion,
		Packages: map[string]string{"docker-compose": "./cmd"},
	}
}

// containerd1 is what Docker's archive has too.
func containerd1() recipe {
	return recipe{
		Name: "containerd-1", Module: "github.com/containerd/containerd@" + Containerd1Version,
		Mod: "readonly", Tags: "no_aufs no_btrfs no_devmapper no_zfs",
		LDFlags: "-X github.com/containerd/containerd/version.Version=" + Containerd1Version,
		Packages: map[string]string{
			"containerd": "./cmd/containerd", "containerd-shim-runc-v2": "./cmd/containerd-shim-runc-v2",
			"ctr": "./cmd/ctr",
		},
	}
}

// docker is laid out as Docker's archive is, which comes without a checksum.
func (f fileSet) docker(ctx context.Context, arch string) error {
	entries := []entry{{Name: "docker/"}}
	for recipe, commands := range map[string][]string{
		"dockerd": {"dockerd", "docker-proxy"}, "docker": {"docker"}, "runc": {"runc"},
		"containerd-1": {"containerd", "containerd-shim-runc-v2", "ctr"},
	} {
		for _, c := range commands {
			entries = append(entries, entry{Name: "docker/" + c, From: f.b.command(recipe, arch, c)})
		}
	}
	tini, err := f.b.tini(ctx)
	if err != nil {
		return err
	}
	entries = append(entries, entry{Name: "docker/docker-init", From: tini})
	to := fmt.Sprintf("download.docker.com/linux/static/stable/%s/docker-%s.tgz", machine(arch),
		strings.TrimPrefix(DockerVersion, "v"))
	name, err := f.place(to)
	if err != nil {
		return err
	}
	return archive(name, entries)
}

// tini is what Docker calls docker-init, from Debian's package.
func (b *builder) tini(ctx context.Context) (string, error) {
	key, err := keyOf("tini", 1)
	if err != nil {
		return "", err
	}
	dir, err := b.output("tini", key, func(tmp string) error {
		const script = `cd "$1" && mmdebstrap --quiet --variant=extract --include=tini bookworm all.tar && tar -xOf all.tar ./usr/bin/tini-static >tini && chmod 755 tini && rm all.tar`
		cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", tmp)
		cmd.Stdout, cmd.Stderr = b.log, b.log
		return cmd.Run()
	})
	return filepath.Join(dir, "tini"), err
}

func (f fileSet) dockerCompose(arch string) error {
	to := githubRelease("docker/compose", DockerComposeVersion, "docker-compose-linux-"+machine(arch))
	sum, err := f.link(to, f.b.command("docker-compose", arch, "docker-compose"))
	if err != nil {
		return err
	}
	return f.text(to+".sha256", sum+" *"+filepath.Base(to)+"\n")
}

// harbor is laid out as Harbor's offline installer is. What its images have is a stand-in.
func (f fileSet) harbor(arch string) (err error) {
	work, err := os.MkdirTemp(f.b.dir, "tmp-harbor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	images := filepath.Join(work, "images.tar.gz")
	if err := f.harborImages(work, images, arch); err != nil {
		return fmt.Errorf("images of Harbor's stand-in: %w", err)
	}
	to := githubRelease("goharbor/harbor", HarborVersion, "harbor-offline-installer-"+HarborVersion+".tgz")
	name, err := f.place(to)
	if err != nil {
		return err
	}
	return archive(name, []entry{
		{Name: "harbor/harbor." + HarborVersion + ".tar.gz", From: images, Mode: 0o644},
		{Name: "harbor/prepare", Text: fmt.Sprintf(harborPrepare, HarborVersion), Mode: 0o755},
		{Name: "harbor/install.sh", Text: "#!/bin/bash\necho 'not used here' >&2\nexit 1\n", Mode: 0o755},
		{Name: "harbor/common.sh", Text: "#!/bin/bash\n", Mode: 0o755},
		{Name: "harbor/harbor.yml.tmpl", Text: "# The lab's stand-in.\n"},
		{Name: "harbor/LICENSE", Text: "The lab's stand-in for Harbor.\n"},
	})
}

// harborPrepare does what Harbor's own does: it gives a container harbor.yml, the data, the configuration and the
// host's files.
const harborPrepare = `#!/bin/bash
set -e
base="$(cd "$(dirname "$0")" && pwd -P)"
rm -rf "$base/input"
mkdir -p "$base/input"
cp "$base/harbor.yml" "$base/input/harbor.yml"
data="$(awk '$1 == "data_volume:" {print $2}' "$base/input/harbor.yml")"
docker run --rm -v "$base/input:/input" -v "$data:/data" -v "$base:/compose_location" -v "$base/common/config:/config" -v /:/hostfs --privileged goharbor/prepare:%s prepare
rm -rf "$base/input"
`

// harborImages writes the archive that Docker loads.
func (f fileSet) harborImages(work, to, arch string) (err error) {
	l, err := newLayer(work, false, func(w io.Writer) error {
		return writeTar(w, []entry{
			{Name: "tmp/", Mode: 0o1777},
			{Name: "harbor", From: f.b.command("harbor", arch, "harbor")},
			{Name: "registry", From: f.b.command("registry", arch, "registry")},
		})
	})
	if err != nil {
		return err
	}
	images := map[name.Reference]v1.Image{}
	for repository, entrypoint := range map[string][]string{
		"goharbor/prepare": {"/harbor"}, "goharbor/nginx-photon": {"/harbor", "serve"},
		"goharbor/registry-photon": {"/registry", "serve", "/etc/registry/config.yml"},
	} {
		ref, err := name.NewTag(repository + ":" + HarborVersion)
		if err != nil {
			return err
		}
		img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: l.as(true)})
		if err != nil {
			return err
		}
		if images[ref], err = mutate.ConfigFile(img, &v1.ConfigFile{
			Architecture: arch, OS: "linux", RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{l.diffID}},
			Config: v1.Config{Entrypoint: entrypoint, Env: []string{
				"VERSION=" + HarborVersion,
				"OTEL_TRACES_EXPORTER=none",
			}},
		}); err != nil {
			return err
		}
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	zw := gzip.NewWriter(out)
	return errors.Join(tarball.MultiRefWrite(images, zw), zw.Close())
}

// machine is what uname calls an architecture.
func machine(arch string) string {
	if arch == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}
