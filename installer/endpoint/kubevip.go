package installer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// kubeVIPName is the name of the task and of its static pod.
	kubeVIPName     = "kube-vip"
	kubeVIPManifest = manifestsDir + "/kube-vip.yaml"
	superAdminConf  = "/etc/kubernetes/super-admin.conf"
)

// kubeVIPTask keeps kube-vip as it shall be on control planes that are nodes. A host that becomes one gets it before
// kubeadm runs, see beforeKubeadm: kubeadm init and join go through its address already.
func kubeVIPTask() Task {
	return Task{
		Name:   kubeVIPName,
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Images: []string{"kube-vip"},
		Leaves: Leaves{Undo: dropVIP},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return err == nil && t != t.run.firstControlPlane(), err
			}
			file, err := t.kubeVIP(ctx, adminConf)
			if err != nil {
				return false, err
			}
			return t.has(ctx, file)
		},
		Do: func(ctx context.Context, t *Target) error {
			file, err := t.kubeVIP(ctx, adminConf)
			if err != nil {
				return err
			}
			if err := t.write(ctx, file); err != nil {
				return err
			}
			// Until the kubelet has ended the earlier pod, that one has the address still, and then nobody for a moment.
			return t.staticPodRuns(ctx, kubeVIPName, file)
		},
	}
}

// beforeKubeadm puts on a host what has to run as soon as its kubelet does.
func (t *Target) beforeKubeadm(ctx context.Context, begins bool) error {
	if begins {
		if err := t.putAuthorities(ctx); err != nil {
			return err
		}
	}
	if t.run.cluster.ControlPlaneEndpoint.Type != manifest.EndpointKubeVIP || !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	conf := adminConf
	if begins && hasSuperAdmin(t.run.cluster) {
		conf = superAdminConf // admin.conf has no rights until kubeadm has given it some, which goes through the address
	}
	file, err := t.kubeVIP(ctx, conf)
	if err != nil {
		return err
	}
	return t.write(ctx, file)
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
func (t *Target) kubeVIP(ctx context.Context, conf string) (textFile, error) {
	vip, err := t.run.vip()
	if err != nil {
		return textFile{}, err
	}
	link, err := t.vipInterface(ctx, vip)
	if err != nil {
		return textFile{}, err
	}
	image, err := catalog.ImageRef(t.run.cluster, "kube-vip")
	if err != nil {
		return textFile{}, err
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
		HostAliases: []corev1.HostAlias{{IP: t.run.loopback().String(), Hostnames: []string{"kubernetes"}}},
		Containers: []corev1.Container{{
			Name: kubeVIPName, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"manager"}, Env: env,
			SecurityContext: &corev1.SecurityContext{
				Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "kubeconfig", MountPath: adminConf, ReadOnly: true}},
		}},
		// Of type File, so that the pod waits for it: without a type, a directory would be made in its place.
		Volumes: []corev1.Volume{kube.HostVolume("kubeconfig", conf, corev1.HostPathFile)},
	})
	return textFile{kubeVIPManifest, 0o600, data}, err
}

// vip is the address that kube-vip announces.
func (r *Site) vip() (netip.Addr, error) {
	host, _, err := net.SplitHostPort(r.endpoint())
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
func (t *Target) vipInterface(ctx context.Context, vip netip.Addr) (string, error) {
	c, err := t.run.on(t.Host)
	if err != nil {
		return "", err
	}
	if name := c.ControlPlaneEndpoint.Interface; name != "" {
		return name, nil
	}
	out, err := t.output(ctx, "ip", "-oneline", "address", "show")
	if err != nil {
		return "", err
	}
	if name := interfaceWith(string(out), vip); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("no interface of %s has a network with the address %s: choose one of the control planes' network, or name controlPlaneEndpoint.interface", t.Name, vip)
}

// interfaceWith finds, in what `ip -oneline address` prints, the interface whose network has an address in it.
func interfaceWith(text string, a netip.Addr) string {
	for line := range strings.Lines(text) {
		// 2: eth0    inet 10.0.0.3/24 brd 10.0.0.255 scope global eth0\ ...
		const name, address = 1, 3
		fields := strings.Fields(line)
		if len(fields) <= address {
			continue
		}
		p, err := netip.ParsePrefix(fields[address])
		if err == nil && p.Contains(a) && p.Addr() != a {
			return strings.TrimSuffix(fields[name], ":")
		}
	}
	return ""
}

// dropVIP takes the address off the interface where kube-vip was ended before it could.
func dropVIP(ctx context.Context, t *Target) error {
	vip, err := netip.ParseAddr(hostOf(t.run.cluster.ControlPlaneEndpoint.Address))
	if err != nil {
		return nil //nolint:nilerr // a name was never announced
	}
	return t.dropAddress(ctx, vip)
}

// dropAddress takes an address that is announced, and no host's own, off its interface.
func (t *Target) dropAddress(ctx context.Context, a netip.Addr) error {
	own := netip.PrefixFrom(a, a.BitLen()).String()
	out, err := t.output(ctx, "ip", "-oneline", "address", "show", "to", own)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if _, err := t.test(ctx, "ip", "address", "delete", own, "dev", strings.TrimSuffix(fields[1], ":")); err != nil {
			return err
		}
	}
	return nil
}

// hostOf returns the host of host or host:port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}
