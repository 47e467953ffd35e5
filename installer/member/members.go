package member

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// BegunPath is the stamp of a started kubeadm run.
	BegunPath = string(marks.KubeadmBegun)
	// Path is the record of a node that joined.
	Path = string(marks.Member)
	// EndpointSetting is the line of the member file that names the cluster's endpoint.
	EndpointSetting = "controlPlaneEndpoint.address"
	// EndpointTypeSetting is the line with the endpoint's type.
	EndpointTypeSetting = "controlPlaneEndpoint.type"
	// domainSetting is the line with the domain of names.
	domainSetting = "dns.domain"
)

// An OtherClusterError means that a host is a node of another cluster.
type OtherClusterError struct {
	Host string
	// Is and Want are the clusters: name, version, and other differences.
	Is, Want string

	upgradable bool // only their versions differ
	// Movable means that only their endpoints differ.
	Movable bool
}

// Error names the host and both clusters.
func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("%s is a node of cluster %s, not of cluster %s", e.Host, e.Is, e.Want)
}

// Hint returns the remedy.
func (e *OtherClusterError) Hint() string {
	if e.Movable {
		return "to change the endpoint, run kkbundle endpoint move with the same files; otherwise give the cluster file of the present endpoint"
	}
	if e.upgradable {
		return "to change the version, run kkbundle upgrade; otherwise give install the bundle and the cluster file of the present version"
	}
	return "give the cluster file and the inventory that this cluster was installed with, or remove the cluster with reset; kkbundle cannot rename or renumber clusters"
}

// Identity returns the identity of the cluster file's cluster.
func Identity(s *task.Site) identity {
	return identity{s.Cluster.Metadata.Name, s.Cluster.Kubernetes.Version}
}

// A FixedSetting is a part of the cluster file that kubeadm init fixes and no later run changes.
type FixedSetting struct {
	Name, Value string
	// Before is the value as written by earlier releases, if different.
	Before string
	// vital settings are used by tasks that always run. Another value would damage the cluster.
	vital bool
}

func fixedSettings(s *task.Site) []FixedSetting {
	k := s.Cluster.Kubernetes
	return []FixedSetting{
		{Name: "kubernetes.podCIDR", Value: k.PodCIDR.String(), vital: true},
		{Name: "kubernetes.serviceCIDR", Value: k.ServiceCIDR.String(), vital: true},
		{Name: EndpointTypeSetting, Value: string(s.Cluster.ControlPlaneEndpoint.Type), vital: true},
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
		{Name: domainSetting, Value: s.Cluster.DNS.Domain, vital: true},
	}
}

// recordedSettings returns the settings that a node's record has. Records of earlier releases have no domain: it was
// the default.
func recordedSettings(s *task.Site) []FixedSetting {
	return slices.DeleteFunc(fixedSettings(s), func(one FixedSetting) bool {
		return one.Name == domainSetting && one.Value == manifest.DefaultDomain
	})
}

// is reports whether a recorded value, of this or an earlier release, equals the setting's.
func (s FixedSetting) is(value string) bool {
	return value == s.Value || s.Before != "" && value == s.Before
}

// ConfigSetting returns the setting for a free-form part of the cluster file. It may contain secrets, so hosts record
// its digest: over JSON with sorted keys, and in earlier releases over Go's own format.
func ConfigSetting(name string, c manifest.Config) FixedSetting {
	if c == nil {
		c = manifest.Config{}
	}
	text, err := json.Marshal(c)
	if err != nil {
		text = fmt.Appendf(nil, "%v", c) // cannot happen: a Config has only JSON's types
	}
	digest := func(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
	return FixedSetting{Name: name, Value: digest(text), Before: digest(fmt.Appendf(nil, "%v", c))}
}

// File returns the record of a node: the identity of its cluster, and a line per fixed setting.
func File(r *task.Site) task.File {
	text := Identity(r).String() + "\n"
	for _, s := range recordedSettings(r) {
		text += s.Name + " " + s.Value + "\n"
	}
	return task.File{Path: Path, Mode: 0o600, Data: []byte(text)}
}

// Records reports whether a file of the host is the record, by this or an earlier release, of this run's cluster file.
func Records(ctx context.Context, t *task.Host, file string) (bool, error) {
	data, err := t.Read(ctx, file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	lines := strings.Split(string(data), "\n")
	want := recordedSettings(t.Site)
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

// Membership reports whether a host is a node of this cluster, and returns its recorded settings. A node of another
// cluster is an error, because kubeadm would destroy it.
func Membership(ctx context.Context, t *task.Host) (settings string, member bool, err error) {
	is, settings, member, err := Recorded(ctx, t)
	if err == nil && !member {
		task.Because(ctx, "%s is no node yet", t.Name)
	}
	if err != nil || !member {
		return "", false, err
	}
	if want := Identity(t.Site); is != want && t.Site.Rule != task.AnyCluster &&
		!(t.Site.Rule == task.OtherVersion && is.sameName(want)) {
		return "", false, &OtherClusterError{
			Host: t.Name, Is: is.String(), Want: want.String(),
			upgradable: is.sameName(want),
		}
	}
	return settings, true, nil
}

// Recorded returns the identity and the settings of the host's cluster, if it is a node of one.
func Recorded(ctx context.Context, t *task.Host) (id identity, settings string, member bool, err error) {
	data, err := t.Read(ctx, Path)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, "", false, nil
	}
	if err != nil {
		return identity{}, "", false, err
	}
	id, settings = Split(data)
	return id, settings, true, nil
}

// Split returns the identity and the settings of a record.
func Split(record []byte) (id identity, settings string) {
	first, settings, _ := strings.Cut(string(record), "\n")
	return parseIdentity(first), settings
}

// IsMember reports whether the host is a node of this cluster.
func IsMember(ctx context.Context, t *task.Host) (bool, error) {
	_, member, err := Membership(ctx, t)
	return member, err
}

// Changed returns the settings whose values in the cluster file differ from the recorded ones, and the recorded ones.
func Changed(r *task.Site, settings string) (now, then []FixedSetting) {
	made := map[string]string{domainSetting: manifest.DefaultDomain}
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

// VitalText describes a cluster by its identity and its vital settings. some reports whether there are any.
func VitalText(id identity, settings []FixedSetting) (text string, some bool) {
	var list []string
	for _, s := range settings {
		if s.vital {
			list = append(list, s.Name+" "+s.Value)
		}
	}
	return id.String() + " with " + strings.Join(list, ", "), len(list) > 0
}

// ClusterPin returns the pin of the authority that a node trusts. It distinguishes clusters of one name.
func ClusterPin(ctx context.Context, t *task.Host) (string, error) {
	path := t.Site.Distribution.Authority
	data, err := t.Read(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s has joined the cluster, but %s is missing: the cluster was removed by hand; run kkbundle reset first", t.Name, path)
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
