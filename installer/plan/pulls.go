package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A Pull is an image that a program on the hosts requests because of its configuration, even if no task declares it.
type Pull struct {
	Ref string
	// Program requests the image: "kubeadm v1.34.3".
	Program string
	Roles   []manifest.Role
}

// kubeadmTask is the task that runs kubeadm. Without it nothing is pulled this way (K3s).
const kubeadmTask = "kubeadm-init"

// Pulls returns the images that kubeadm and the container runtime pull by themselves, by their configuration. kubeadm's
// pause image is built in: the cluster's version of pause does not change it.
func Pulls(c *manifest.Cluster) ([]Pull, error) {
	c = c.WithDefaults()
	if !slices.ContainsFunc(Plan(c), func(p task.Phase) bool {
		return slices.ContainsFunc(p.Tasks, func(t task.Task) bool { return t.Name == kubeadmTask })
	}) {
		return nil, nil
	}
	sandbox, err := catalog.ImageRef(c, "pause")
	if err != nil {
		return nil, err
	}
	pulls := []Pull{{
		Ref: sandbox, Program: string(c.CRI.Type) + ", for the pods' sandboxes,",
		Roles: []manifest.Role{manifest.RoleCluster},
	}}
	refs, err := kubeadmImages(c)
	for _, ref := range refs {
		pulls = append(pulls, Pull{
			Ref: ref, Program: "kubeadm " + c.Kubernetes.Version,
			Roles: []manifest.Role{manifest.RoleControlPlane},
		})
	}
	return pulls, err
}

// kubeadmDNS is the name of CoreDNS' image.
const kubeadmDNS = "coredns"

// kubeadmImages is `kubeadm config images list` for the cluster's configuration
// (https://github.com/kubernetes/kubernetes/blob/v1.34.3/cmd/kubeadm/app/images/images.go, GetControlPlaneImages).
func kubeadmImages(c *manifest.Cluster) ([]string, error) {
	k, err := kubeadm.NewConfig(c, "")
	if err != nil {
		return nil, err
	}
	config := kubeadmDocument(k.ClusterConfiguration())
	own := *c // for the pause image that is built in
	own.Components = nil
	own.Kubernetes.Version = cmp.Or(config.text("kubernetesVersion"), c.Kubernetes.Version)
	pause, err := catalog.Version(&own, "pause")
	if err != nil {
		return nil, err
	}
	all := config.text("imageRepository")
	refs := map[string]bool{}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		refs[all+"/"+name+":"+own.Kubernetes.Version] = true
	}
	refs[all+"/pause:"+pause] = true
	if disabled, _ := config.below("proxy")["disabled"].(bool); !disabled {
		refs[all+"/kube-proxy:"+own.Kubernetes.Version] = true
	}
	dns := config.below("dns")
	if disabled, _ := dns["disabled"].(bool); !disabled {
		repository := cmp.Or(dns.text("imageRepository"), all)
		if repository == kubeadm.ImageRepository {
			repository += "/" + kubeadmDNS // the official image's place since 1.21
		}
		refs[repository+"/"+kubeadmDNS+":"+dns.text("imageTag")] = true
	}
	etcd := config.below("etcd")
	if external := etcd.below("external"); external == nil && c.Etcd.Type == manifest.EtcdInternal {
		local := etcd.below("local")
		refs[cmp.Or(local.text("imageRepository"), all)+"/etcd:"+local.text("imageTag")] = true
	}
	return fullyQualified(refs)
}

func fullyQualified(refs map[string]bool) ([]string, error) {
	var list []string
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		full, err := scalar.ImageName(ref)
		if err != nil {
			return nil, err
		}
		list = append(list, full)
	}
	return list, nil
}

// kubeadmDocument is a part of a user's configuration. Any value may be missing or of another type.
type kubeadmDocument kube.Document

func (d kubeadmDocument) text(key string) string {
	s, _ := d[key].(string)
	return s
}

func (d kubeadmDocument) below(key string) kubeadmDocument {
	switch m := d[key].(type) {
	case map[string]any:
		return m
	case manifest.Config:
		return kubeadmDocument(m)
	}
	return nil
}
