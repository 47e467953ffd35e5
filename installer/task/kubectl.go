package task

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

const KubectlCache = StateDir + "/kubectl"

// NodePackages are what kubeadm's checks, the kubelet, kube-proxy and port forwarding use of the operating system.
func NodePackages() []string {
	return []string{"conntrack", "ebtables", "ethtool", "iproute", "iptables", "socat"}
}

// Kubectl runs Kubectl as the cluster's administrator and returns what it prints.
func (t *Host) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return t.Kube().Run(ctx, args...)
}

// Kube returns a client that runs kubectl on this host, as the cluster's administrator.
func (t *Host) Kube() kube.Client { return kube.Client{Kubectl: t.runKubectl} }

func (t *Host) runKubectl(ctx context.Context, c kube.Command) ([]byte, error) {
	if c.Quiet {
		ctx = WithoutOutput(ctx)
	}
	if c.Patience > 0 {
		ctx = WithPatience(ctx, c.Patience)
	}
	command := t.Site.Distribution.Kubectl
	if server := t.ownServer(); server != "" {
		command = append(command, "--server="+server)
	}
	out := &capped.Buffer{Most: MaxFile}
	cmd := host.Cmd{
		Args:   slices.Concat(command, c.Args),
		Env:    []string{"KUBECACHEDIR=" + KubectlCache}, // not in root's home, where Reset has no business
		Stdout: out,
	}
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	err := t.Conn.Run(ctx, cmd)
	return out.Bytes(), err
}

// ownServer is the control plane's own API server, where kubectl is to ask another than admin.conf names: kubectl must
// work there whatever has become of the address that all share. "" is what admin.conf names.
func (t *Host) ownServer() string {
	own := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	if !t.Is(manifest.RoleControlPlane) || !t.IP.IsValid() || t.Site.Endpoint() == own {
		return ""
	}
	return "https://" + own
}

// Server is the flag by which kubectl asks the API Server of one control plane, and not any behind the endpoint.
func (t *Host) ServerFlag() string {
	return "--server=https://" + net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
}

// FieldManager owns the fields that an installation sets.
const FieldManager = "kkbundle"

// ApplyObjects applies objects that may be secret, on kubectl's side.
func (t *Host) ApplyObjects(ctx context.Context, objects ...runtime.Object) error {
	data, err := kube.YAML(objects...)
	if err != nil {
		return err
	}
	return t.Kube().Apply(ctx, data, kube.Apply{})
}
