package installer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
)

const (
	// begunPath says that kubeadm was started on a host, memberPath that it succeeded, and for which cluster.
	begunPath  = stampDir + "/kubeadm-begun"
	memberPath = stampDir + "/member"
	// endpointSetting is the line of the member file that names the cluster's endpoint.
	endpointSetting = "controlPlaneEndpoint.address"
)

// A MemberError says that a host is a node of another cluster than the one that is to be installed.
type MemberError struct {
	Host string
	// Is and Want are the clusters: name, version, and what else tells them apart.
	Is, Want string
}

// Error names the host and both clusters.
func (e *MemberError) Error() string {
	return fmt.Sprintf("%s is a node of cluster %s, and this would make it one of cluster %s", e.Host, e.Is, e.Want)
}

// Hint says what to do about it.
func (e *MemberError) Hint() string {
	if sameName(e.Is, e.Want) && versionOf(e.Is) != versionOf(e.Want) {
		return "kkbundle upgrade brings a cluster to another version; install wants the bundle and the cluster file of the one that it has"
	}
	return "give the cluster file and the inventory that this cluster was made with; kkbundle cannot rename or renumber clusters, and reset takes the old one away"
}

// clusterID is what makes a cluster another one.
func (r *Site) clusterID() string {
	return r.cluster.Metadata.Name + " " + r.cluster.Kubernetes.Version
}

// A fixedSetting is a part of the cluster file that kubeadm init fixes and no later run changes.
type fixedSetting struct {
	name, value string
	// vital settings are also used by tasks that run every time: with another value these would damage the cluster.
	vital bool
}

func (r *Site) fixedSettings() []fixedSetting {
	k := r.cluster.Kubernetes
	return []fixedSetting{
		{"kubernetes.podCIDR", k.PodCIDR.String(), true},
		{"kubernetes.serviceCIDR", k.ServiceCIDR.String(), true},
		{"controlPlaneEndpoint.type", string(r.cluster.ControlPlaneEndpoint.Type), true},
		{endpointSetting, r.endpoint(), true},
		{"etcd.type", string(r.cluster.Etcd.Type), true},
		{"etcd.dataDir", r.cluster.Etcd.DataDir, true},
		{"kubernetes.proxyMode", string(k.ProxyMode), false},
		{"kubernetes.maxPods", strconv.Itoa(k.MaxPods), false},
		{"kubernetes.kubelet", digestOf(k.Kubelet), false},
		{"kubernetes.kubeadm", digestOf(k.Kubeadm), false},
		{"kubernetes.kubeProxy", digestOf(k.KubeProxy), false},
		{"kubernetes.security", string(k.Security), false},
		{"cni.maskSizes", fmt.Sprintf("%d,%d", r.cluster.CNI.IPv4MaskSize, r.cluster.CNI.IPv6MaskSize), false},
	}
}

// digestOf stands for a free-form part of the cluster file, which may have secrets in it.
func digestOf(c manifest.Config) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%v", c))) // fmt sorts keys
}

// memberFile is what a node remembers of its cluster: which one it is, and a line for each fixed setting.
func (r *Site) memberFile() textFile {
	text := r.clusterID() + "\n"
	for _, s := range r.fixedSettings() {
		text += s.name + " " + s.value + "\n"
	}
	return textFile{memberPath, 0o600, []byte(text)}
}

// membership returns what a host that is a node of this cluster remembers of it, "" for a host that is no node. That it
// is one of another cluster is an error: kubeadm would be made to take it apart.
func (t *Target) membership(ctx context.Context) (settings string, member bool, err error) {
	is, settings, member, err := t.recorded(ctx)
	if err == nil && !member {
		because(ctx, "%s is no node yet", t.Name)
	}
	if err != nil || !member {
		return "", false, err
	}
	if want := t.run.clusterID(); is != want && t.run.rule != AnyCluster && !(t.run.rule == OtherVersion && sameName(is, want)) {
		return "", false, &MemberError{Host: t.Name, Is: is, Want: want}
	}
	return settings, true, nil
}

// recorded returns what a host remembers of the cluster that it is a node of: which one, and its fixed settings.
func (t *Target) recorded(ctx context.Context) (id, settings string, member bool, err error) {
	data, err := t.read(ctx, memberPath)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, err
	}
	id, settings, _ = strings.Cut(string(data), "\n")
	return id, settings, true, nil
}

// sameName tells whether two clusters differ in their version at most.
func sameName(a, b string) bool {
	nameA, _, _ := strings.Cut(a, " ")
	nameB, _, _ := strings.Cut(b, " ")
	return nameA == nameB
}

// isMember tells whether the host is a node of this cluster.
func (t *Target) isMember(ctx context.Context) (bool, error) {
	_, member, err := t.membership(ctx)
	return member, err
}

// changed returns the settings that the cluster file has other values for than the cluster was made with, and those
// values.
func (r *Site) changed(settings string) (now, then []fixedSetting) {
	made := map[string]string{}
	for line := range strings.Lines(settings) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		made[name] = value
	}
	for _, s := range r.fixedSettings() {
		if value, known := made[s.name]; known && value != s.value {
			now, then = append(now, s), append(then, fixedSetting{s.name, value, s.vital})
		}
	}
	return now, then
}

// vital writes the vital ones of some settings behind a cluster's name.
func vital(id string, settings []fixedSetting) (text string, some bool) {
	var list []string
	for _, s := range settings {
		if s.vital {
			list = append(list, s.name+" "+s.value)
		}
	}
	return id + " with " + strings.Join(list, ", "), len(list) > 0
}

// checkMembers refuses, before anything is changed, an inventory or a cluster file that does not fit the cluster that is
// there: hosts of another cluster, even of the same name, and settings that would be applied by half.
func (r *run) checkMembers(ctx context.Context) error {
	if err := r.findLead(ctx); err != nil {
		return err
	}
	first := r.firstControlPlane()
	if first.on == nil || first.failure != nil {
		return nil // nothing can be compared, and nothing will be done
	}
	settings, begun, err := first.membership(ctx)
	if err != nil {
		return err
	}
	if !begun && !r.isWanted(first) {
		return fmt.Errorf("%s begins the cluster and is no node yet: the first install cannot leave it out of --limit", first.Name)
	}
	want := fmt.Sprintf("%s that is to begin on %s", r.clusterID(), first.Name)
	authority := ""
	if begun {
		now, then := r.changed(settings)
		if is, some := vital(r.clusterID(), then); some {
			want, _ := vital(r.clusterID(), now)
			return &MemberError{Host: first.Name, Is: is, Want: want}
		}
		if authority, err = first.clusterPin(ctx); err != nil {
			return err
		}
		want = fmt.Sprintf("%s with the authority %s of %s", r.clusterID(), authority, first.Name)
	}
	return r.onAll(r.connected(manifest.RoleCluster), func(_ int, t *Target) error {
		if t == first || t.failure != nil {
			return nil
		}
		member, err := t.isMember(ctx)
		if err != nil || !member {
			return err
		}
		has, err := t.clusterPin(ctx)
		if err != nil || has == authority {
			return err
		}
		return &MemberError{Host: t.Name, Is: fmt.Sprintf("%s with the authority %s", r.clusterID(), has), Want: want}
	})
}

// clusterPin tells clusters of one name apart: the public key of the authority that a node trusts.
func (t *Target) clusterPin(ctx context.Context) (string, error) {
	path := distributionOf(t.run.cluster).authority
	data, err := t.read(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s was made a node, but %s is gone: somebody has taken the cluster off it by hand. Run kkbundle reset first", t.Name, path)
	}
	if err != nil {
		return "", err
	}
	ca, err := pki.ParseCertificate(data)
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w", path, t.Name, err)
	}
	return pin(ca), nil
}

// tellIgnored warns of what is different in the cluster file and is not applied to the cluster that is there.
func (r *run) tellIgnored(ctx context.Context) error {
	first := r.firstControlPlane()
	settings, member, err := first.membership(ctx)
	if err != nil || !member || r.rule == OtherVersion { // an upgrade applies them
		return err
	}
	now, _ := r.changed(settings)
	if len(now) == 0 {
		return nil
	}
	var names []string
	for _, s := range now {
		names = append(names, s.name)
	}
	r.tell(Event{
		Phase: "precheck", Task: "precheck", Host: first.Name, State: Warned,
		Message: fmt.Sprintf("not what the cluster was made with, and not applied to it: %s. kkbundle upgrade applies it, with a bundle of the same version too",
			strings.Join(names, ", ")),
	})
	return nil
}

// members returns the nodes among the hosts that this run is connected to, in the order of the inventory.
func (r *Site) members(ctx context.Context) ([]*Target, error) {
	list := r.connected(manifest.RoleCluster)
	member := make([]bool, len(list))
	err := r.onAll(list, func(i int, t *Target) (err error) {
		member[i], err = t.isMember(ctx)
		return err
	})
	var members []*Target
	for i, t := range list {
		if member[i] {
			members = append(members, t)
		}
	}
	return members, err
}
