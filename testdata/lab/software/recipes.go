package software

import (
	"fmt"
	"strings"
)

// Versions of what the lab's cluster is made of. They are those that kubeadm of this Kubernetes version asks for, and
// that the catalog names; all but pause (built here) are modules of the Go proxy at the tag of the same name.
const (
	KubernetesVersion   = "v1.36.3"
	ContainerdVersion   = "v2.3.7"
	RuncVersion         = "v1.3.6"
	EtcdVersion         = "v3.6.8"
	EtcdImageTag        = "3.6.8-0"
	CoreDNSVersion      = "v1.14.2"
	CNIVersion          = "v1.9.1"
	FlannelVersion      = "v0.28.4"
	FlannelCNIImageTag  = "v1.9.1-flannel1" // what the chart of FlannelVersion asks for
	flannelPluginModule = "v0.9.1"          // the last release of the CNI plugins that held the flannel plugin
	RegistryVersion     = "v3.1.2"
	PauseVersion        = "3.10.2"
	LabappVersion       = "1.0.0"         // of src/labapp as a release and in the demo's images
	HAProxyImageTag     = "3.2.19-alpine" // the catalog's; what is in it is Debian's
	KubeVIPVersion      = "v1.0.3"        // the catalog's, of what has to be given
)

// A recipe says how the commands of one module are built. It is data: its JSON is part of the key of what it makes.
type recipe struct {
	Name   string
	Module string // path@version
	// what of the module is copied before the build, "." for all; nothing: built where the module cache has it
	Copy     []string
	Source   string            // or: a folder of this package's src
	Remove   []string          // of the copy
	Rename   map[string]string `json:",omitempty"` // of the copy
	Edits    []edit            // of the copy
	Add      map[string]string // to the copy
	ModEdit  []string          // arguments of go mod edit
	Mod      string            // -mod
	Tags     string
	LDFlags  string
	Cgo      bool
	Packages map[string]string // command's name here: package
}

// An edit replaces what a regular expression matches, at least once.
type edit struct{ File, Match, With string }

// kubernetes is built from the version's own sources. One build makes all seven programs: they share most packages.
func kubernetes(version string) recipe {
	commands := []string{
		"kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		"kube-proxy",
	}
	packages, imports := map[string]string{}, ""
	for _, c := range commands {
		packages[c] = "k8s.io/kubernetes/cmd/" + c
		imports += " _ \"k8s.io/kubernetes/cmd/" + c + "\"\n"
	}
	var stamp []string
	minor := strings.TrimPrefix(majorMinor(version), "1.")
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamp = append(stamp, fmt.Sprintf(
			"-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", p,
			version, minor))
	}
	staging := strings.Replace(version, "v1.", "v0.", 1)
	return recipe{
		Name: "kubernetes", Module: "k8s.io/kubernetes@" + version,
		// Kubernetes' own go.mod and go.sum, under another module's name, with the staging directories as the modules
		// that they are published as.
		Copy: []string{"go.mod", "go.sum"},
		Edits: []edit{
			{"go.mod", `(?m)^module .*`, "module lab.local/k8s"},
			{"go.mod", `(?m)^(\s*)(k8s.io/[^ ]*) => ./staging.*`, "$1$2 => $2 " + staging},
		},
		Add:     map[string]string{"tools.go": "package tools\nimport (\n" + imports + ")\n"},
		ModEdit: []string{"-require=k8s.io/kubernetes@" + version},
		Mod:     "mod", LDFlags: strings.Join(stamp, " "), Packages: packages,
	}
}

func containerd(name, version string) recipe {
	return recipe{
		Name: name, Module: "github.com/containerd/containerd/v2@" + version,
		Mod: "readonly", Tags: "no_btrfs no_devmapper no_zfs",
		LDFlags: "-X github.com/containerd/containerd/v2/version.Version=" + version,
		Packages: map[string]string{
			"containerd": "./cmd/containerd", "containerd-shim-runc-v2": "./cmd/containerd-shim-runc-v2",
			"ctr": "./cmd/ctr",
		},
	}
}

// runc is changed in one line: a machine without CAP_SYS_RESOURCE (a VM in a sandbox, say) can't lower oom_score_adj,
// and runc would fail every pod for it.
func runc() recipe {
	return recipe{
		Name: "runc", Module: "github.com/opencontainers/runc@" + RuncVersion,
		Copy: []string{"."}, Remove: []string{"vendor"},
		Edits: []edit{{
			"libcontainer/nsenter/nsexec.c",
			`bail\("failed to update /proc/self/oom_score_adj"\)`,
			`write_log(WARNING, "failed to update /proc/self/oom_score_adj")`,
		}},
		Mod: "readonly", Tags: "seccomp netgo osusergo", Cgo: true,
		LDFlags:  "-X main.version=" + strings.TrimPrefix(RuncVersion, "v") + " -extldflags -static",
		Packages: map[string]string{"runc": "."},
	}
}

// etcd's commands are modules of their own that point at each other's folders; here they use each other's releases.
func etcd(name, module, version string) recipe {
	drop := []string{"-dropreplace=go.etcd.io/etcd", "-dropreplace=go.etcd.io/tests/v3"}
	modules := []string{"api/v3", "client/pkg/v3", "client/v3", "pkg/v3"}
	if strings.HasPrefix(version, "v3.5.") {
		modules = append(modules, "client/v2", "raft/v3", "etcdutl/v3", "server/v3")
	}
	for _, m := range modules {
		drop = append(drop, "-dropreplace=go.etcd.io/etcd/"+m)
	}
	return recipe{
		Name: name, Module: "go.etcd.io/etcd/" + module + "/v3@" + version,
		Copy: []string{"."}, ModEdit: drop, Mod: "mod", Packages: map[string]string{name: "."},
	}
}

// etcdutl works on the data of servers, and points at their module's folder as well.
func etcdutl(version string) recipe {
	r := etcd("etcdutl", "etcdutl", version)
	r.ModEdit = append(r.ModEdit, "-dropreplace=go.etcd.io/etcd/v3", "-dropreplace=go.etcd.io/etcd/server/v3")
	return r
}

// coredns comes without the plugins for clouds' services, signing and tracing, which are half of the compile time.
func coredns(version string) recipe {
	return recipe{
		Name: "coredns", Module: "github.com/coredns/coredns@" + version,
		Copy:  []string{"."},
		Edits: []edit{{"core/plugin/zplugin.go", `(?m)^.*/plugin/(azure|clouddns|dnssec|route53|trace)"\n`, ""}},
		Mod:   "readonly", LDFlags: "-X github.com/coredns/coredns/coremain.GitCommit=lab",
		Packages: map[string]string{"coredns": "."},
	}
}

func cni() recipe {
	packages := map[string]string{}
	for _, p := range []string{
		"main/bridge", "main/host-device", "main/ipvlan", "main/loopback", "main/macvlan", "main/ptp", "main/vlan",
		"ipam/dhcp", "ipam/host-local", "ipam/static", "meta/bandwidth", "meta/firewall", "meta/portmap", "meta/sbr",
		"meta/tuning", "meta/vrf",
	} {
		packages[p[strings.IndexByte(p, '/')+1:]] = "./plugins/" + p
	}
	return recipe{
		Name: "cni", Module: "github.com/containernetworking/plugins@" + CNIVersion, Mod: "readonly",
		LDFlags:  "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=" + CNIVersion,
		Packages: packages,
	}
}

func flannelPlugin() recipe {
	return recipe{
		Name: "flannel-cni", Module: "github.com/containernetworking/plugins@" + flannelPluginModule,
		Copy: []string{"."}, Mod: "mod", Packages: map[string]string{"flannel": "./plugins/meta/flannel"},
	}
}

// flanneld comes without two backends: one needs a module that the proxy lacks, the other needs cgo.
func flanneld(name, version string) recipe {
	return recipe{
		Name: name, Module: "github.com/flannel-io/flannel@" + version,
		Copy: []string{"."}, Remove: []string{"pkg/backend/tencentvpc"},
		Edits: []edit{{"main.go", `(?m)^.*/pkg/backend/(tencentvpc|udp)"\n`, ""}},
		Mod:   "readonly", LDFlags: "-X github.com/flannel-io/flannel/pkg/version.Version=" + version,
		Packages: map[string]string{"flanneld": "."},
	}
}

// registry comes without the storage drivers of three clouds, which are most of its compile time.
func registry() recipe {
	version := "github.com/distribution/distribution/v3/version.version"
	return recipe{
		Name: "registry", Module: "github.com/distribution/distribution/v3@" + RegistryVersion,
		Copy:  []string{"."},
		Edits: []edit{{"cmd/registry/main.go", `(?m)^.*/driver/(azure|gcs|s3-aws|middleware/cloudfront)"\n`, ""}},
		Mod:   "readonly", LDFlags: "-X " + version + "=" + RegistryVersion,
		Packages: map[string]string{"registry": "./cmd/registry"},
	}
}

// own is a program of this package's src. It needs the standard library only, so that it is compiled in seconds.
func own(name string) recipe {
	return recipe{Name: name, Source: name, Packages: map[string]string{name: "."}}
}
