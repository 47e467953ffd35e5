package endpoint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// kubeVIPName is the name of the task and of its static pod.
	kubeVIPName     = "kube-vip"
	KubeVIPManifest = kube.ManifestsDir + "/kube-vip.yaml"
	SuperAdminConf  = "/etc/kubernetes/super-admin.conf"
)

// KubeVIPTask keeps kube-vip as it shall be on control planes that are nodes. A host that becomes one gets it before
// kubeadm runs, see BeforeKubeadm: kubeadm init and join go through its address already.
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
			// Until the kubelet has ended the earlier pod, that one has the address still, and then nobody for a moment.
			return staticPodRuns(ctx, t, kubeVIPName, file)
		},
	}
}

// BeforeKubeadm puts on a host what has to run as soon as its kubelet does.
func BeforeKubeadm(ctx context.Context, t *task.Host, begins bool) error {
	if begins {
		if err := authority.PutAuthorities(ctx, t); err != nil {
			return err
		}
	}
	if t.Site.Cluster.ControlPlaneEndpoint.Type != manifest.EndpointKubeVIP || !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	conf := kube.AdminConf
	if begins && hasSuperAdmin(t.Site.Cluster) {
		conf = SuperAdminConf // admin.conf has no rights until kubeadm has given it some, which goes through the address
	}
	file, err := kubeVIP(ctx, t, conf)
	if err != nil {
		return err
	}
	return t.Write(ctx, file)
}

// hasSuperAdmin tells whether kubeadm init writes super-admin.conf, as it does since Kubernetes 1.29.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/
func hasSuperAdmin(c *manifest.Cluster) bool {
	v, err := semver.NewVersion(c.Kubernetes.Version)
	return err == nil && !v.LessThan(semver.New(1, 29, 0, "", ""))
}

// kubeVIP returns the static pod that announces the endpoint's address by ARP (or NDP) from the control plane that holds
// a lease. Names and values of the environment: https://kube-vip.io/docs/installation/flags/. It asks the API server of
// its own host, by the name that is in every API server's certificate.
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
	// The lease's times are what kube-vip's own manifests have.
	env := []corev1.EnvVar{
		{Name: "vip_nodename", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
	}
	for _, one := range [][2]string{
		{"vip_arp", "true"},
		{"port", strconv.Itoa(manifest.DefaultPort)},
		{"vip_interface", link},
		{"vip_subnet", strconv.Itoa(vip.BitLen())},
		{"cp_enable", "true"},
		{"cp_namespace", "kube-system"},
		{"vip_leaderelection", "true"},
		{"vip_leasename", "plndr-cp-lock"},
		{"vip_leaseduration", "5"},
		{"vip_renewdeadline", "3"},
		{"vip_retryperiod", "1"},
		{"address", vip.String()},
	} {
		env = append(env, corev1.EnvVar{Name: one[0], Value: one[1]})
	}
	data, err := kube.StaticPod(kubeVIPName, nil, corev1.PodSpec{
		HostAliases: []corev1.HostAlias{{IP: t.Site.Loopback().String(), Hostnames: []string{"kubernetes"}}},
		Containers: []corev1.Container{{
			Name: kubeVIPName, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"manager"}, Env: env,
			SecurityContext: &corev1.SecurityContext{
				Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "kubeconfig", MountPath: kube.AdminConf, ReadOnly: true}},
		}},
		// Of type File, so that the pod waits for it: without a type, a directory would be made in its place.
		Volumes: []corev1.Volume{kube.HostVolume("kubeconfig", conf, corev1.HostPathFile)},
	})
	return task.File{Path: KubeVIPManifest, Mode: 0o600, Data: data}, err
}

// vip is the address that kube-vip announces.
func vip(r *task.Site) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(r.Endpoint())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("controlPlaneEndpoint.address: %w", err)
	}
	vip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("controlPlaneEndpoint.address: kube-vip announces an address, not a name: %w", err)
	}
	return vip, nil
}

// vipInterface is the interface that the operator names, or the one whose network has the address in it.
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
	return "", fmt.Errorf("no interface of %s has a network with the address %s: choose one of the control planes' network, or name controlPlaneEndpoint.interface", t.Name, vip)
}

// DropVIP takes the address off the interface where kube-vip was ended before it could.
func DropVIP(ctx context.Context, t *task.Host) error {
	vip, err := netip.ParseAddr(hostOf(t.Site.Cluster.ControlPlaneEndpoint.Address))
	if err != nil {
		return nil //nolint:nilerr // a name was never announced
	}
	return t.DropAddress(ctx, vip)
}

// hostOf returns the host of host or host:port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}
