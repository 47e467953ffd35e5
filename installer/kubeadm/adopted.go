package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

// kubeletFlags has the arguments that kubeadm gives a kubelet.
const kubeletFlags = "/var/lib/kubelet/kubeadm-flags.env"

// ArgumentsTask gives the kubelet of an adopted node the address and the name with which kkbundle's nodes register.
// Kubespray and KubeKey have them in files and units of their own, which kkbundle's unit does not read: the kubelet
// would take the address of the default route.
func ArgumentsTask() task.Task {
	return task.Task{
		Name: "kubelet-arguments",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if adopted, err := marks.IsAdopted(ctx, t); err != nil || !adopted {
				return err == nil, err
			}
			have, want, err := kubeletArguments(ctx, t)
			return have == want, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			_, want, err := kubeletArguments(ctx, t)
			if err != nil {
				return err
			}
			return t.Write(ctx, task.File{Path: kubeletFlags, Mode: 0o644, Data: []byte(want)})
		},
	}
}

// SecretsTask makes what only root may read in every cluster so on an adopted node: Kubespray and KubeKey leave the
// directory of static pods, and their own pods in it, readable for all.
func SecretsTask() task.Task {
	return task.Task{
		Name: "secret-modes",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if adopted, err := marks.IsAdopted(ctx, t); err != nil || !adopted {
				return err == nil, err
			}
			open, err := OpenFiles(ctx, t, SecretPaths()...)
			return len(open) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return t.Run(ctx, host.Script("close-modes.sh", closeModesScript, SecretPaths()...)...)
		},
	}
}

// kubeletArguments returns the text of kubeletFlags, and the text with a node's address and name.
func kubeletArguments(ctx context.Context, t *task.Host) (have, want string, err error) {
	data, err := t.Read(ctx, kubeletFlags)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	name, err := t.Output(ctx, "uname", "-n")
	if err != nil {
		return "", "", err
	}
	missing := []argument{{"node-ip", JoinAddresses(t.Addresses())}}
	if !strings.EqualFold(strings.TrimSpace(string(name)), t.Name) {
		missing = append(missing, argument{"hostname-override", t.Name})
	}
	return string(data), withArguments(string(data), missing), nil
}

// withArguments adds the arguments that a text of kubeletFlags lacks.
func withArguments(text string, args []argument) string {
	const variable = "KUBELET_KUBEADM_ARGS="
	var lines []string
	var flags string
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), variable); ok {
			flags = strings.Trim(value, `"'`)
		} else {
			lines = append(lines, line)
		}
	}
	words := strings.Fields(flags)
	add := slices.DeleteFunc(slices.Clone(args), func(a argument) bool {
		return slices.ContainsFunc(words, func(word string) bool {
			name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
			return name == a.name
		})
	})
	if len(add) == 0 {
		return text
	}
	for _, a := range add {
		words = append(words, fmt.Sprintf("--%s=%v", a.name, a.value))
	}
	return strings.Join(lines, "") + variable + `"` + strings.Join(words, " ") + "\"\n"
}

// adoptedPatch is the patch with which a node joins a cluster that another tool made. kkbundle's reservations and the
// patches of the cluster file override it.
const adoptedPatch = "kubeletconfiguration%adopted+merge.yaml"

// beforeJoin prepares the join of a node to a cluster with the objects of another tool, which no upgrade has replaced
// yet. They fit the tool's own nodes: the kubelet's settings in the cluster are not those of the nodes, authorities are
// in another directory, and kube-proxy asks a balancer on its node. It returns what is to be removed after the join.
func beforeJoin(ctx context.Context, t, first *task.Host, config Config) (patch string, err error) {
	others, err := marks.OnControlPlane(ctx, first.Site, marks.HasOthersPrograms)
	if err != nil || !others {
		return "", err
	}
	live, err := first.Kube().ConfigMap(ctx, kube.SystemNamespace, "kubeadm-config")
	if err != nil {
		return "", err
	}
	var cluster struct {
		CertificatesDir string `json:"certificatesDir"`
	}
	if err := yaml.Unmarshal([]byte(live.Data["ClusterConfiguration"]), &cluster); err != nil {
		return "", fmt.Errorf("ConfigMap kube-system/kubeadm-config: %w", err)
	}
	if err := linkPKI(ctx, t, cluster.CertificatesDir); err != nil {
		return "", err
	}
	if err := endpoint.LeadProxyHere(ctx, first); err != nil {
		return "", err
	}
	files, err := othersKubelet(ctx, first, config)
	if err != nil || len(files) == 0 {
		return "", err
	}
	return files[0].Path, t.Write(ctx, files...)
}

// linkPKI makes the directory of authorities that another tool's settings name lead to kubeadm's.
func linkPKI(ctx context.Context, t *task.Host, dir string) error {
	if dir = path.Clean(dir); dir == "." || dir == kube.PKIDir || !path.IsAbs(dir) {
		return nil
	}
	if there, err := t.AnyExists(ctx, dir); err != nil || there {
		return err
	}
	if err := t.Run(ctx, "mkdir", "-p", "--", path.Dir(dir)); err != nil {
		return err
	}
	return t.Run(ctx, "ln", "-s", "--", kube.PKIDir, dir)
}

// othersKubelet returns the patch that makes the settings in the cluster those of the cluster file, none if they are.
func othersKubelet(ctx context.Context, first *task.Host, config Config) ([]task.File, error) {
	live, err := first.Kube().ConfigMap(ctx, kube.SystemNamespace, "kubelet-config")
	if err != nil {
		return nil, err
	}
	var have map[string]any
	if err := yaml.Unmarshal([]byte(live.Data["kubelet"]), &have); err != nil {
		return nil, fmt.Errorf("ConfigMap kube-system/kubelet-config: %w", err)
	}
	var services corev1.ServiceList
	if err := first.Kube().Get(ctx, &services, "services", "--namespace="+kube.SystemNamespace,
		"--selector=k8s-app=kube-dns"); err != nil {
		return nil, err
	}
	want, err := asRead(config.KubeletConfiguration())
	if err != nil {
		return nil, err
	}
	if addresses := dnsOf(have["clusterDNS"], services.Items); addresses != nil {
		want["clusterDNS"] = addresses
	}
	patch := differences(have, want)
	if len(patch) == 0 {
		return nil, nil
	}
	return appendPatch(nil, adoptedPatch, patch)
}

// asRead returns a document as a program reads it.
func asRead(d kube.Document) (map[string]any, error) {
	data, err := yaml.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's settings: %w", err)
	}
	var read map[string]any
	if err := yaml.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("the kubelet's settings: %w", err)
	}
	return read, nil
}

// dnsOf returns the address of the cluster's DNS for a kubelet whose settings lead to none, else nil. A cache on the
// node has an address of the link.
func dnsOf(setting any, services []corev1.Service) []any {
	var found []any
	for i := range services {
		if ip, err := netip.ParseAddr(services[i].Spec.ClusterIP); err == nil {
			found = append(found, ip.String())
		}
	}
	for _, one := range listOf(setting) {
		ip, err := netip.ParseAddr(fmt.Sprint(one))
		if err == nil && (ip.IsLinkLocalUnicast() || slices.Contains(found, any(ip.String()))) {
			return nil
		}
	}
	return found[:min(1, len(found))]
}
