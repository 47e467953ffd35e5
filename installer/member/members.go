package member

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
)

const (
	// BegunPath says that kubeadm was started on a host, Path that it succeeded, and for which cluster.
	BegunPath = task.StampDir + "/kubeadm-begun"
	Path      = task.StampDir + "/member"
	// EndpointSetting is the line of the member file that names the cluster's endpoint.
	EndpointSetting = "controlPlaneEndpoint.address"
)

// A MemberError says that a host is a node of another cluster than the one that is to be installed.
type OtherClusterError struct {
	Host string
	// Is and Want are the clusters: name, version, and what else tells them apart.
	Is, Want string

	upgradable bool // only their versions differ
}

// Error names the host and both clusters.
func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("%s is a node of cluster %s, and this would make it one of cluster %s", e.Host, e.Is, e.Want)
}

// Hint says what to do about it.
func (e *OtherClusterError) Hint() string {
	if e.upgradable {
		return "kkbundle upgrade brings a cluster to another version; install wants the bundle and the cluster file of the one that it has"
	}
	return "give the cluster file and the inventory that this cluster was made with; kkbundle cannot rename or renumber clusters, and reset takes the old one away"
}

// identity returns the identity of the cluster file's cluster.
func Identity(s *task.Site) identity {
	return identity{s.Cluster.Metadata.Name, s.Cluster.Kubernetes.Version}
}

// A FixedSetting is a part of the cluster file that kubeadm init fixes and no later run changes.
type FixedSetting struct {
	Name, Value string
	// before is the value as earlier releases wrote it, if they wrote another one.
	Before string
	// vital settings are also used by tasks that run every time: with another value these would damage the cluster.
	vital bool
}

func fixedSettings(s *task.Site) []FixedSetting {
	k := s.Cluster.Kubernetes
	return []FixedSetting{
		{Name: "kubernetes.podCIDR", Value: k.PodCIDR.String(), vital: true},
		{Name: "kubernetes.serviceCIDR", Value: k.ServiceCIDR.String(), vital: true},
		{Name: "controlPlaneEndpoint.type", Value: string(s.Cluster.ControlPlaneEndpoint.Type), vital: true},
		{Name: EndpointSetting, Value: s.Endpoint(), vital: true},
		{Name: "etcd.type", Value: string(s.Cluster.Etcd.Type), vital: true},
		{Name: "etcd.dataDir", Value: s.Cluster.Etcd.DataDir, vital: true},
		{Name: "kubernetes.proxyMode", Value: string(k.ProxyMode)},
		{Name: "kubernetes.maxPods", Value: strconv.Itoa(k.MaxPods)},
		ConfigSetting("kubernetes.kubelet", k.Kubelet),
		ConfigSetting("kubernetes.kubeadm", k.Kubeadm),
		ConfigSetting("kubernetes.kubeProxy", k.KubeProxy),
		{Name: "kubernetes.security", Value: string(k.Security)},
		{Name: "cni.maskSizes", Value: fmt.Sprintf("%d,%d", s.Cluster.CNI.IPv4MaskSize, s.Cluster.CNI.IPv6MaskSize)},
	}
}

// is reports whether a recorded value is the setting's, as this or an earlier release writes it.
func (s FixedSetting) is(value string) bool {
	return value == s.Value || s.Before != "" && value == s.Before
}

// ConfigSetting is a free-form part of the cluster file. It may have secrets in it, so that hosts record its digest: that of JSON with
// sorted keys, and in earlier releases that of Go's own format.
func ConfigSetting(name string, c manifest.Config) FixedSetting {
	if c == nil {
		c = manifest.Config{}
	}
	text, err := json.Marshal(c)
	if err != nil {
		text = fmt.Appendf(nil, "%v", c) // a Config has JSON's types only
	}
	digest := func(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
	return FixedSetting{Name: name, Value: digest(text), Before: digest(fmt.Appendf(nil, "%v", c))}
}

// File is the record of a node: the identity of its cluster, and a line for each fixed setting.
func File(r *task.Site) task.File {
	text := Identity(r).String() + "\n"
	for _, s := range fixedSettings(r) {
		text += s.Name + " " + s.Value + "\n"
	}
	return task.File{Path: Path, Mode: 0o600, Data: []byte(text)}
}

// Records reports whether a file of the host is a File of this run's cluster file, as this or an earlier release writes it.
func Records(ctx context.Context, t *task.Host, file string) (bool, error) {
	data, err := t.Read(ctx, file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	lines := strings.Split(string(data), "\n")
	want := fixedSettings(t.Site)
	same := err == nil && len(lines) == len(want)+2 && lines[0] == Identity(t.Site).String() && lines[len(want)+1] == ""
	for i := 0; same && i < len(want); i++ {
		name, value, _ := strings.Cut(lines[i+1], " ")
		same = name == want[i].Name && want[i].is(value)
	}
	if !same {
		task.BecauseOfFile(ctx, file, err == nil)
	}
	return same, nil
}

// Membership returns what a host that is a node of this cluster remembers of it, "" for a host that is no node. That it
// is one of another cluster is an error: kubeadm would be made to take it apart.
func Membership(ctx context.Context, t *task.Host) (settings string, member bool, err error) {
	is, settings, member, err := Recorded(ctx, t)
	if err == nil && !member {
		task.Because(ctx, "%s is no node yet", t.Name)
	}
	if err != nil || !member {
		return "", false, err
	}
	if want := Identity(t.Site); is != want && t.Site.Rule != task.AnyCluster && !(t.Site.Rule == task.OtherVersion && is.sameName(want)) {
		return "", false, &OtherClusterError{Host: t.Name, Is: is.String(), Want: want.String(), upgradable: is.sameName(want)}
	}
	return settings, true, nil
}

// Recorded returns the identity and the fixed settings of the cluster that the host is a node of.
func Recorded(ctx context.Context, t *task.Host) (id identity, settings string, member bool, err error) {
	data, err := t.Read(ctx, Path)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, "", false, nil
	}
	if err != nil {
		return identity{}, "", false, err
	}
	first, settings, _ := strings.Cut(string(data), "\n")
	return parseIdentity(first), settings, true, nil
}

// IsMember tells whether the host is a node of this cluster.
func IsMember(ctx context.Context, t *task.Host) (bool, error) {
	_, member, err := Membership(ctx, t)
	return member, err
}

// Changed returns the settings that the cluster file has other values for than the cluster was made with, and those
// values.
func Changed(r *task.Site, settings string) (now, then []FixedSetting) {
	made := map[string]string{}
	for line := range strings.Lines(settings) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		made[name] = value
	}
	for _, s := range fixedSettings(r) {
		if value, known := made[s.Name]; known && !s.is(value) {
			now, then = append(now, s), append(then, FixedSetting{Name: s.Name, Value: value, vital: s.vital})
		}
	}
	return now, then
}

// vital writes the vital ones of some settings behind a cluster's name.
func VitalText(id identity, settings []FixedSetting) (text string, some bool) {
	var list []string
	for _, s := range settings {
		if s.vital {
			list = append(list, s.Name+" "+s.Value)
		}
	}
	return id.String() + " with " + strings.Join(list, ", "), len(list) > 0
}

// ClusterPin tells clusters of one name apart: the public key of the authority that a node trusts.
func ClusterPin(ctx context.Context, t *task.Host) (string, error) {
	path := t.Site.Distribution.Authority
	data, err := t.Read(ctx, path)
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
	return task.Pin(ca), nil
}

// Members returns the nodes among the hosts that this run is connected to, in the order of the inventory.
func Members(ctx context.Context, s *task.Site) ([]*task.Host, error) {
	list := s.Connected(manifest.RoleCluster)
	member := make([]bool, len(list))
	err := s.OnAll(list, func(i int, t *task.Host) (err error) {
		member[i], err = IsMember(ctx, t)
		return err
	})
	var members []*task.Host
	for i, t := range list {
		if member[i] {
			members = append(members, t)
		}
	}
	return members, err
}
