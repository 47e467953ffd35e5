package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// kubeVIPName is the name of the task and of its static pod.
	kubeVIPName = "kube-vip"
	// KubeVIPManifest is kube-vip's static pod manifest.
	KubeVIPManifest = kube.ManifestsDir + "/kube-vip.yaml"
	// SuperAdminConf is kubeadm's kubeconfig with rights that do not depend on RBAC.
	SuperAdminConf = "/etc/kubernetes/super-admin.conf"
)

// KubeVIPTask updates kube-vip on control planes that are nodes. A new control plane gets it from BeforeKubeadm:
// kubeadm init and join use its address already.
func KubeVIPTask() task.Task {
	return task.Task{
		Name:   kubeVIPName,
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Images: []string{"kube-vip"},
		Leaves: task.Leaves{Undo: DropVIP},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return err == nil && t != t.Site.FirstControlPlane(), err
			}
			file, err := kubeVIP(ctx, t, kube.AdminConf)
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, file)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			file, err := kubeVIP(ctx, t, kube.AdminConf)
			if err != nil {
				return err
			}
			if err := t.Write(ctx, file); err != nil {
				return err
			}
			// The old pod holds the address until the kubelet has stopped it; then nobody holds it for a moment.
			return staticPodRuns(ctx, t, kubeVIPName, file)
		},
	}
}

// BeforeKubeadm writes kube-vip's pod for kubeadm init (begins) or join, and for init the operator's authorities.
func BeforeKubeadm(ctx context.Context, t *task.Host, begins bool) error {
	if begins {
		if err := authority.Write(ctx, t); err != nil {
			return err
		}
	}
	if t.Site.Cluster.ControlPlaneEndpoint.Type != manifest.EndpointKubeVIP || !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	conf := kube.AdminConf
	if begins && hasSuperAdmin(t.Site.Cluster) {
		conf = SuperAdminConf // kubeadm grants admin.conf its rights later, through the address
	}
	file, err := kubeVIP(ctx, t, conf)
	if err != nil {
		return err
	}
	return t.Write(ctx, file)
}

// hasSuperAdmin reports whether kubeadm init writes super-admin.conf: since Kubernetes 1.29.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/
func hasSuperAdmin(c *manifest.Cluster) bool {
	v, err := semver.NewVersion(c.Kubernetes.Version)
	return err == nil && !v.LessThan(semver.New(1, 29, 0, "", ""))
}

// kubeVIP returns kube-vip's static pod for a control plane.
func kubeVIP(ctx context.Context, t *task.Host, conf string) (task.File, error) {
	vip, err := vip(t.Site)
	if err != nil {
		return task.File{}, err
	}
	link, err := vipInterface(ctx, t, vip)
	if err != nil {
		return task.File{}, err
	}
	image, err := catalog.ImageRef(t.Site.Cluster, "kube-vip")
	if err != nil {
		return task.File{}, err
	}
	data, err := KubeVIP{
		Image: image, Address: vip.String(), Bits: vip.BitLen(), Interface: link,
		Loopback: t.Site.Loopback().String(), Config: conf,
	}.Pod()
	return task.File{Path: KubeVIPManifest, Mode: 0o600, Data: data}, err
}

// A KubeVIP is what kube-vip's static pod differs in.
type KubeVIP struct {
	Image     string
	Address   string // which is announced
	Bits      int    // of Address: 32 or 128
	Interface string // of the host, on which it is announced
	Loopback  string // an address of the host itself
	Config    string // the kubeconfig on the host
}

// Pod returns the manifest. The control plane that holds the lease announces the address by ARP or NDP. Environment:
// https://kube-vip.io/docs/installation/flags/. The host alias makes it use its own host's API server under a name from
// the certificate.
func (k KubeVIP) Pod() ([]byte, error) {
	// The lease's durations are from kube-vip's own manifests.
	env := []corev1.EnvVar{
		{Name: "vip_nodename", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
	}
	for _, one := range [][2]string{
		{"vip_arp", "true"},
		{"port", strconv.Itoa(manifest.DefaultPort)},
		{"vip_interface", k.Interface},
		{"vip_subnet", strconv.Itoa(k.Bits)},
		{"cp_enable", "true"},
		{"cp_namespace", "kube-system"},
		{"vip_leaderelection", "true"},
		{"vip_leasename", "plndr-cp-lock"},
		{"vip_leaseduration", "5"},
		{"vip_renewdeadline", "3"},
		{"vip_retryperiod", "1"},
		{"address", k.Address},
	} {
		env = append(env, corev1.EnvVar{Name: one[0], Value: one[1]})
	}
	return kube.StaticPod(kubeVIPName, nil, corev1.PodSpec{
		HostAliases: []corev1.HostAlias{{IP: k.Loopback, Hostnames: []string{"kubernetes"}}},
		Containers: []corev1.Container{{
			Name: kubeVIPName, Image: k.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"manager"},
			Env: env,
			SecurityContext: &corev1.SecurityContext{
				Capabilities: &corev1.Capabilities{
					Add:  []corev1.Capability{"NET_ADMIN", "NET_RAW"},
					Drop: []corev1.Capability{"ALL"},
				},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "kubeconfig", MountPath: kube.AdminConf, ReadOnly: true}},
		}},
		// Type File makes the pod wait for the file; without a type, the kubelet would create a directory.
		Volumes: []corev1.Volume{kube.HostVolume("kubeconfig", k.Config, corev1.HostPathFile)},
	})
}

// vip returns the address that kube-vip announces.
func vip(r *task.Site) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(r.Endpoint())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("controlPlaneEndpoint.address: %w", err)
	}
	vip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("controlPlaneEndpoint.address: kube-vip needs an IP address: %w", err)
	}
	return vip, nil
}

// vipInterface returns the configured interface, else the one whose network contains the address.
func vipInterface(ctx context.Context, t *task.Host, vip netip.Addr) (string, error) {
	c, err := t.Site.ClusterOn(t.Host)
	if err != nil {
		return "", err
	}
	if name := c.ControlPlaneEndpoint.Interface; name != "" {
		return name, nil
	}
	out, err := t.Output(ctx, "ip", "-oneline", "address", "show")
	if err != nil {
		return "", err
	}
	if name := task.InterfaceWith(string(out), vip); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("no network on %s contains %s: choose an address in the control planes' network, or set controlPlaneEndpoint.interface", t.Name, vip)
}

// DropVIP removes the address from its interface if kube-vip was killed before it could.
func DropVIP(ctx context.Context, t *task.Host) error {
	vip, err := netip.ParseAddr(hostOf(t.Site.Cluster.ControlPlaneEndpoint.Address))
	if err != nil {
		return nil //nolint:nilerr // a name was never announced
	}
	return t.DropAddress(ctx, vip)
}

// LeaveVIP takes the address from a host that is about to be reset, by the manifest that is there: of a cluster that
// Cluster API declares, only that names it.
func LeaveVIP(ctx context.Context, t *task.Host) error {
	data, err := t.Read(ctx, KubeVIPManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	vip, ok := announced(data)
	if !ok {
		return nil
	}
	for _, args := range [][]string{
		{"systemctl", "stop", "kubelet.service"}, // it would start kube-vip again
		{"pkill", "--exact", kubeVIPName},
	} {
		if _, err := t.Test(ctx, args...); err != nil {
			return err
		}
	}
	return t.DropAddress(ctx, vip)
}

// announced returns the address in a manifest of kube-vip.
func announced(pod []byte) (vip netip.Addr, ok bool) {
	var p corev1.Pod
	if err := yaml.Unmarshal(pod, &p); err != nil {
		return netip.Addr{}, false
	}
	for _, c := range p.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == "address" {
				vip, err := netip.ParseAddr(e.Value)
				return vip, err == nil
			}
		}
	}
	return netip.Addr{}, false
}

// hostOf returns the host part of host or host:port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}

// RestartKubeVIP restarts kube-vip, if a control plane has it: kube-vip reads its kubeconfig at its start. Another
// control plane takes the address over.
func RestartKubeVIP(ctx context.Context, t *task.Host) error {
	there, err := t.Test(ctx, "test", "-e", KubeVIPManifest)
	if err != nil || !there {
		return err
	}
	if _, err := t.Test(ctx, "pkill", "--exact", kubeVIPName); err != nil {
		return err
	}
	ca, err := t.Read(ctx, kube.ClusterCA)
	if err != nil {
		return err
	}
	return task.Eventually(ctx, endpointWait, func(ctx context.Context) error {
		if err := t.Run(ctx, "pgrep", "--exact", kubeVIPName); err != nil {
			return fmt.Errorf("kube-vip on %s has not started again: %w", t.Name, err)
		}
		return APIAnswers(ctx, t, t.Site.Endpoint(), ca)
	})
}
