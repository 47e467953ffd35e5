package installer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
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

	upgradable bool // only their versions differ
}

// Error names the host and both clusters.
func (e *MemberError) Error() string {
	return fmt.Sprintf("%s is a node of cluster %s, and this would make it one of cluster %s", e.Host, e.Is, e.Want)
}

// Hint says what to do about it.
func (e *MemberError) Hint() string {
	if e.upgradable {
		return "kkbundle upgrade brings a cluster to another version; install wants the bundle and the cluster file of the one that it has"
	}
	return "give the cluster file and the inventory that this cluster was made with; kkbundle cannot rename or renumber clusters, and reset takes the old one away"
}

// identity returns the identity of the cluster file's cluster.
func (r *Site) identity() identity {
	return identity{r.cluster.Metadata.Name, r.cluster.Kubernetes.Version}
}

// A fixedSetting is a part of the cluster file that kubeadm init fixes and no later run changes.
type fixedSetting struct {
	name, value string
	// before is the value as earlier releases wrote it, if they wrote another one.
	before string
	// vital settings are also used by tasks that run every time: with another value these would damage the cluster.
	vital bool
}

func (r *Site) fixedSettings() []fixedSetting {
	k := r.cluster.Kubernetes
	return []fixedSetting{
		{name: "kubernetes.podCIDR", value: k.PodCIDR.String(), vital: true},
		{name: "kubernetes.serviceCIDR", value: k.ServiceCIDR.String(), vital: true},
		{name: "controlPlaneEndpoint.type", value: string(r.cluster.ControlPlaneEndpoint.Type), vital: true},
		{name: endpointSetting, value: r.endpoint(), vital: true},
		{name: "etcd.type", value: string(r.cluster.Etcd.Type), vital: true},
		{name: "etcd.dataDir", value: r.cluster.Etcd.DataDir, vital: true},
		{name: "kubernetes.proxyMode", value: string(k.ProxyMode)},
		{name: "kubernetes.maxPods", value: strconv.Itoa(k.MaxPods)},
		configSetting("kubernetes.kubelet", k.Kubelet),
		configSetting("kubernetes.kubeadm", k.Kubeadm),
		configSetting("kubernetes.kubeProxy", k.KubeProxy),
		{name: "kubernetes.security", value: string(k.Security)},
		{name: "cni.maskSizes", value: fmt.Sprintf("%d,%d", r.cluster.CNI.IPv4MaskSize, r.cluster.CNI.IPv6MaskSize)},
	}
}

// is reports whether a recorded value is the setting's, as this or an earlier release writes it.
func (s fixedSetting) is(value string) bool {
	return value == s.value || s.before != "" && value == s.before
}

// configSetting is a free-form part of the cluster file. It may have secrets in it, so that hosts record its digest: that of JSON with
// sorted keys, and in earlier releases that of Go's own format.
func configSetting(name string, c manifest.Config) fixedSetting {
	if c == nil {
		c = manifest.Config{}
	}
	text, err := json.Marshal(c)
	if err != nil {
		text = fmt.Appendf(nil, "%v", c) // a Config has JSON's types only
	}
	digest := func(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
	return fixedSetting{name: name, value: digest(text), before: digest(fmt.Appendf(nil, "%v", c))}
}

// memberFile is the record of a node: the identity of its cluster, and a line for each fixed setting.
func (r *Site) memberFile() textFile {
	text := r.identity().String() + "\n"
	for _, s := range r.fixedSettings() {
		text += s.name + " " + s.value + "\n"
	}
	return textFile{memberPath, 0o600, []byte(text)}
}

// records reports whether a file of the host is a memberFile of this run's cluster file, as this or an earlier release writes it.
func (t *Target) records(ctx context.Context, file string) (bool, error) {
	data, err := t.read(ctx, file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	lines := strings.Split(string(data), "\n")
	want := t.run.fixedSettings()
	same := err == nil && len(lines) == len(want)+2 && lines[0] == t.run.identity().String() && lines[len(want)+1] == ""
	for i := 0; same && i < len(want); i++ {
		name, value, _ := strings.Cut(lines[i+1], " ")
		same = name == want[i].name && want[i].is(value)
	}
	if !same {
		becauseOf(ctx, file, err == nil)
	}
	return same, nil
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
	if want := t.run.identity(); is != want && t.run.rule != AnyCluster && !(t.run.rule == OtherVersion && is.sameName(want)) {
		return "", false, &MemberError{Host: t.Name, Is: is.String(), Want: want.String(), upgradable: is.sameName(want)}
	}
	return settings, true, nil
}

// recorded returns the identity and the fixed settings of the cluster that the host is a node of.
func (t *Target) recorded(ctx context.Context) (id identity, settings string, member bool, err error) {
	data, err := t.read(ctx, memberPath)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, "", false, nil
	}
	if err != nil {
		return identity{}, "", false, err
	}
	first, settings, _ := strings.Cut(string(data), "\n")
	return parseIdentity(first), settings, true, nil
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
		if value, known := made[s.name]; known && !s.is(value) {
			now, then = append(now, s), append(then, fixedSetting{name: s.name, value: value, vital: s.vital})
		}
	}
	return now, then
}

// vital writes the vital ones of some settings behind a cluster's name.
func vital(id identity, settings []fixedSetting) (text string, some bool) {
	var list []string
	for _, s := range settings {
		if s.vital {
			list = append(list, s.name+" "+s.value)
		}
	}
	return id.String() + " with " + strings.Join(list, ", "), len(list) > 0
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
	want := fmt.Sprintf("%s that is to begin on %s", r.identity(), first.Name)
	authority := ""
	if begun {
		now, then := r.changed(settings)
		if is, some := vital(r.identity(), then); some {
			want, _ := vital(r.identity(), now)
			return &MemberError{Host: first.Name, Is: is, Want: want}
		}
		if authority, err = first.clusterPin(ctx); err != nil {
			return err
		}
		want = fmt.Sprintf("%s with the authority %s of %s", r.identity(), authority, first.Name)
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
		return &MemberError{Host: t.Name, Is: fmt.Sprintf("%s with the authority %s", r.identity(), has), Want: want}
	})
}

// clusterPin tells clusters of one name apart: the public key of the authority that a node trusts.
func (t *Target) clusterPin(ctx context.Context) (string, error) {
	path := t.run.distribution.authority
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
