package upstream

import (
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// manifests returns the files that make kkbundle fetch from the upstream at addr, by name.
func manifests(addr string, small bool) map[string]string {
	if small {
		return map[string]string{"manifest.yaml": smallManifest + sources(addr, "registry.k8s.io", "docker.io",
			"ghcr.io", "github.com", "charts.lab.example")}
	}
	hosts := []string{
		"registry.k8s.io", "ghcr.io", "docker.io", "dl.k8s.io", "github.com", "flannel-io.github.io",
		"charts.lab.example",
		"download.docker.com", "storage.googleapis.com", "openebs.github.io", "quay.io", "helm.cilium.io",
	}
	return map[string]string{
		"manifest.yaml": clusterManifest + sources(addr, hosts...),
		"cluster.yaml":  fmt.Sprintf(cluster, software.KubernetesVersion),
		"web.yaml":      webValues,
	}
}

func sources(addr string, hosts ...string) string {
	var b strings.Builder
	b.WriteString("sources:\n")
	for _, h := range hosts {
		fmt.Fprintf(&b, "  - {host: %s, mirror: %s/%s, mirrorOnly: true, ca: ca.pem}\n", h, addr, h)
	}
	return b.String()
}

const clusterManifest = `# The lab's cluster and an application for it.
apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: lab, version: 1.0.0}
platforms: [linux/amd64]
cluster: cluster.yaml
images:
  - docker.io/lab/labapp:1
charts:
  - name: web
    repo: https://charts.lab.example/stable
    version: 1.0.x
    values: [web.yaml]
`

const webValues = `replicas: 2
`

// The lab's machine has cgroup v1, and its containers can't change the machine's connection tracking.
const cluster = `apiVersion: kkbundle.io/v1
kind: Cluster
metadata: {name: lab}
kubernetes:
  version: %s
  kubelet: {failCgroupV1: false}
  kubeProxy:
    conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
etcd: {type: internal}
cni: {type: flannel}
imageRegistry: {type: registry}
addons:
  - chart: web
    namespace: web
    values: [web.yaml]
`

const smallManifest = `# Small and real: three images for two architectures, a chart and a file with upstream's checksum.
apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: demo, version: 1.0.0}
platforms: [linux/amd64, linux/arm64]
images:
  - docker.io/lab/labapp:1
  - ghcr.io/lab/probe:` + software.LabappVersion + `
  - registry.k8s.io/pause:` + software.PauseVersion + `
charts:
  - name: web
    repo: https://charts.lab.example/stable
    version: 1.0.x
files:
  - name: labapp
    url: https://github.com/lab/labapp/releases/download/v` + software.LabappVersion + `/labapp_` + software.LabappVersion + `_linux_{arch}.tar.gz
    checksums: https://github.com/lab/labapp/releases/download/v` + software.LabappVersion + `/labapp_` + software.LabappVersion + `_linux_{arch}.tar.gz.sha256
    version: ` + software.LabappVersion + `
`
