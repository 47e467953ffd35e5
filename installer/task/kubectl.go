package task

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// KubectlCache is kubectl's cache on hosts. It is not in root's home, where Reset must remove nothing.
const KubectlCache = StateDir + "/kubectl"

// NodePackages returns the operating system packages that kubeadm's checks, the kubelet, kube-proxy, port forwarding
// and SELinux use.
func NodePackages() []string {
	return []string{
		"conntrack", "container-selinux", "ebtables", "ethtool", "iproute", "iptables", "kernel-modules",
		"socat",
	}
}

// Kubectl runs kubectl as the cluster's administrator and returns its output.
func (t *Host) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return t.Kube().Run(ctx, args...)
}

// Kube returns a client that runs kubectl on this host as the cluster's administrator.
func (t *Host) Kube() kube.Client { return kube.Client{Kubectl: t.runKubectl} }

func (t *Host) runKubectl(ctx context.Context, c kube.Command) ([]byte, error) {
	if c.Quiet {
		ctx = WithoutOutput(ctx)
	}
	if c.Patience > 0 {
		ctx = WithPatience(ctx, c.Patience)
	}
	command := t.Site.Distribution.Kubectl
	if t.usesOwnServer() {
		command = append(slices.Clone(command), t.ServerFlag())
	}
	out := &capped.Buffer{Most: MaxFile}
	cmd := host.Cmd{
		Args:   slices.Concat(command, c.Args),
		Env:    []string{"KUBECACHEDIR=" + KubectlCache},
		Stdout: out,
	}
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	err := t.Conn.Run(ctx, cmd)
	return out.Bytes(), err
}

// usesOwnServer reports whether kubectl asks the control plane's own API server instead of the one in admin.conf. On
// a control plane, kubectl must work even if the shared endpoint does not.
func (t *Host) usesOwnServer() bool {
	return t.Is(manifest.RoleControlPlane) && t.IP.IsValid() && t.ServerFlag() != "--server=https://"+t.Site.Endpoint()
}

// ServerFlag returns the flag that makes kubectl use the API server of this control plane instead of the endpoint.
func (t *Host) ServerFlag() string {
	return "--server=https://" + net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
}

// ReadyQuestion returns kubectl's arguments that ask an API server whether it is ready: that of a flag of ServerFlag,
// or the one in admin.conf. A server that takes the connection and does not answer is given five seconds.
func ReadyQuestion(server ...string) []string {
	return append(server, "get", "--raw=/readyz", "--request-timeout=5s")
}

// ServerReady asks this control plane's own API server, not the one behind the cluster's endpoint, whether it is ready.
func (t *Host) ServerReady(ctx context.Context) error {
	_, err := t.Kubectl(ctx, ReadyQuestion(t.ServerFlag())...)
	return err
}

// FieldManager is the field manager of objects that kkbundle applies.
const FieldManager = "kkbundle"

// ApplyObjects applies objects on the client's side.
func (t *Host) ApplyObjects(ctx context.Context, objects ...runtime.Object) error {
	data, err := kube.YAML(objects...)
	if err != nil {
		return err
	}
	return t.Kube().Apply(ctx, data, kube.Apply{})
}
