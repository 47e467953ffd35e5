package handover

import (
	"fmt"
	"slices"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// localMode is a feature gate that Cluster API adds to control planes before 1.36; later ones have it always. It is
// written out here, because machines that lack it would be replaced.
const localMode = "ControlPlaneKubeletLocalMode"

// clusterConfiguration is kubeadm's configuration of the cluster in the words of Cluster API: what is kubeadm's default
// is left out, and what Cluster API has in the Cluster. CoreDNS is, too: Cluster API replaces it by another tag only.
func (f *found) clusterConfiguration() kube.Document {
	c := kube.Document{}
	for _, name := range []string{"apiServer", "controllerManager", "scheduler", "featureGates"} {
		if o := object(f.config, name); len(o) > 0 {
			c[name] = o
		}
	}
	if local := object(object(f.config, "etcd"), "local"); len(local) > 0 {
		c["etcd"] = kube.Document{"local": local}
	}
	for name, usual := range map[string]string{
		"imageRepository": "registry.k8s.io", "certificatesDir": kube.PKIDir, "encryptionAlgorithm": "RSA-2048",
	} {
		if text, ok := f.config[name].(string); ok && text != usual {
			c[name] = text
		}
	}
	for _, p := range periods() {
		if days, err := p.days(f.config); err == nil && days != p.usual {
			c[p.name+"Days"] = days
		}
	}
	if v, err := semver.NewVersion(f.cluster.Kubernetes.Version); err == nil && v.LessThan(semver.New(1, 36, 0, "", "")) {
		gates := kube.Document{localMode: true}
		for name, on := range object(f.config, "featureGates") {
			gates[name] = on
		}
		c["featureGates"] = gates
	}
	return c
}

// A period is how long kubeadm's certificates are valid, which Cluster API has in days.
type period struct {
	name       string
	usual, max int // in days: kubeadm's default, and Cluster API's maximum
}

func periods() []period {
	const year, yearsOfCA, maxYears, maxYearsOfCA = 365, 10, 3, 100
	return []period{
		{"certificateValidityPeriod", year, maxYears * year},
		{"caCertificateValidityPeriod", yearsOfCA * year, maxYearsOfCA * year},
	}
}

// days returns the period of a ClusterConfiguration, or why Cluster API cannot have it.
func (p period) days(config map[string]any) (int, error) {
	const day = 24 * time.Hour
	has, ok := config[p.name]
	if !ok {
		return p.usual, nil
	}
	long, err := time.ParseDuration(fmt.Sprint(has))
	if days := int(long / day); err == nil && long%day == 0 && days >= 1 && days <= p.max {
		return days, nil
	}
	return 0, fmt.Errorf("%s is %v, and Cluster API has whole days, from 24h to %dh", p.name, has,
		p.max*int(day/time.Hour))
}

// unknown returns the parts of kubeadm's configuration that Cluster API has no words for.
func (f *found) unknown() (list []string) {
	known := []string{
		"apiVersion", "kind", "clusterName", "kubernetesVersion", "controlPlaneEndpoint", "networking", "dns", "proxy",
		"apiServer", "controllerManager", "scheduler", "featureGates", "etcd", "imageRepository", "certificatesDir",
		"encryptionAlgorithm", "certificateValidityPeriod", "caCertificateValidityPeriod",
	}
	for name := range f.config {
		if !slices.Contains(known, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
