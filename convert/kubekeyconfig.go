package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// config reads a Config of KubeKey v4: its cluster, and the content that `kk artifact export` would pack.
func (s *site) config(o *object) error { //nolint:funlen // one line for each key
	spec := o.mapping("spec")
	download := spec.mapping("download")
	s.carried(spec, "download", "image_manifests", "zone")
	s.Bundle.Zone = or(download.text("zone"), spec.text("zone"))
	for _, arch := range download.texts("arch") {
		s.platform(download.line(), arch)
	}
	s.listed(spec.list("image_manifests"))
	s.images4(download.mapping("images"))
	for _, chart := range download.objects("charts") {
		s.chart4(chart)
	}
	for _, n := range download.list("iso") {
		s.note(n, "download.iso: %s was not carried over: packages with distribution: ID/VERSION and roles: true resolves what the hosts need, or with iso: takes the image from a local path", shorten(n.Value))
	}
	kubernetes := download.mapping("kubernetes")
	versions := plain(s, kubernetes, "kube_version", withV)
	kubernetes.rest()
	cluster := spec.mapping("kubernetes")
	own := withV(or(cluster.text("kube_version"), spec.text("kube_version")))
	if strings.Contains(own, "{{") {
		own = ""
	}
	if own != "" {
		versions = before(own, versions)
	}
	if len(versions) == 0 {
		s.note(o.node, "no version of Kubernetes is given (spec.kubernetes.kube_version), so there is no cluster file")
		cluster.restBecause("it belongs to a cluster file")
		spec.restBecause("it belongs to a cluster file")
		download.restBecause("it belongs to a cluster file")
		return nil
	}
	for _, version := range versions {
		if _, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v")); err != nil {
			return fmt.Errorf("line %d: invalid kube_version %q: write v and three numbers, as in v1.36.3", o.node.Line,
				shorten(version))
		}
	}
	var settings []string
	if own == "" {
		settings = []string{"kubernetes.version=" + versions[0]}
	}
	base, err := s.cluster(settings...)
	if err != nil {
		return err
	}
	storage := download.mapping("storage_class")
	base.Storage.Local = storage.mapping("local").yes("enabled") || base.Storage.Local
	base.Storage.NFS = storage.mapping("nfs").yes("enabled") || base.Storage.NFS
	storage.rest()
	c := s.choices4(spec, download, &base)
	c.versions = versions
	s.clusters(base, c)
	download.skip("timeout", "fetch", "cn_host", "artifact_file", "artifact_md5", "tools")
	download.rest()
	return nil
}

// carried suppresses kubekey's notes about keys that are read here.
func (s *site) carried(o *object, keys ...string) {
	for i := 0; o.node != nil && i+1 < len(o.node.Content); i += 2 {
		if key := o.node.Content[i]; slices.Contains(keys, key.Value) {
			s.taken[placeOf(key)] = true
		}
	}
}

// choices4 returns the choices under download, each list starting with the cluster's own choice.
func (s *site) choices4(spec, download *object, base *manifest.Cluster) choices {
	var c choices
	cni, cri, registry := download.mapping("cni"), download.mapping("cri"), download.mapping("image_registry")
	c.networks = plain(s, cni, "type", kubekey.Network)
	if spec.mapping("cni").text("type") != "" || len(c.networks) == 0 {
		c.networks = before(base.CNI.Primary(), c.networks)
	}
	if slices.Contains(cni.texts("multi_cni"), "multus") && base.CNI.Type != manifest.NetworkMultus {
		base.CNI = manifest.CNI{
			Type: manifest.NetworkMultus, With: c.networks[0], IPv4MaskSize: base.CNI.IPv4MaskSize,
			IPv6MaskSize: base.CNI.IPv6MaskSize,
		}
		s.note(cni.node, "download.cni.multi_cni: the clusters with %s have multus", c.networks[0])
	}
	types := plain(s, cri, "container_manager",
		func(name string) manifest.RuntimeType { return manifest.RuntimeType(name) })
	if base.CRI.Type != "" || len(types) == 0 {
		types = before(base.CRI.Type, types)
	}
	for _, kind := range types {
		c.runtimes = append(c.runtimes, manifest.CRI{Type: kind})
	}
	c.registries = plain(s, registry, "type", ourRegistry)
	if base.ImageRegistry.Type != "" {
		c.registries = before(base.ImageRegistry.Type, c.registries)
	}
	for _, o := range []*object{cni, cri, registry} {
		o.rest()
	}
	return c
}

// ourRegistry returns kkbundle's name of a registry.
func ourRegistry(name string) manifest.RegistryType {
	if name == "docker-registry" {
		return manifest.RegistryPlain
	}
	return manifest.RegistryType(name)
}

func (s *site) images4(o *object) {
	s.listed(o.list("manifests"))
	switch policy := o.text("policy"); policy {
	case "warn":
		s.Bundle.PlatformPolicy = manifest.PolicyWarn
	case "", "strict":
	default:
		s.note(o.node, "download.images.policy %s was not carried over: want strict or warn", shorten(policy))
	}
	o.drop("registry", "images come from the registries in their names; configure mirrors under sources, and logins with `kkbundle login`")
	o.rest()
}

// listed adds a list of references.
func (s *site) listed(list []*yaml.Node) {
	for _, n := range list {
		switch {
		case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		case strings.Contains(n.Value, "{{"):
			s.note(n, "image %s was left out: templates are not evaluated", shorten(n.Value))
		default:
			s.image(n, manifest.Image{Name: strings.TrimSpace(n.Value)})
		}
	}
}

// chart4 adds a chart: name@https://repository, or oci://…/name.
func (s *site) chart4(o *object) {
	address, version := o.text("url"), o.text("version")
	o.rest()
	name, repo, found := strings.Cut(address, "@")
	switch {
	case strings.Contains(address, "{{"):
		s.note(o.node, "chart %s was left out: templates are not evaluated", shorten(address))
	case strings.HasPrefix(address, "oci://"):
		s.addChart(nil, s.repoChart(o.node, "", address, version), manifest.Addon{})
	case found && isURL(repo):
		s.addChart(nil, s.repoChart(o.node, name, repo, version), manifest.Addon{})
	case isURL(address):
		s.addChart(nil, manifest.Chart{URL: address}, manifest.Addon{})
	default:
		s.note(o.node, "chart %s was left out: want name@https://repository or oci://…", shorten(address))
	}
}

// plain returns the results of to for the texts of a list, without duplicates. Templates are left out with a note.
func plain[T ~string](s *site, o *object, key string, to func(string) T) []T {
	var all []T
	for _, one := range o.texts(key) {
		if strings.Contains(one, "{{") {
			s.note(o.node, "%s: %s was left out: templates are not evaluated", join(o.path, key), shorten(one))
		} else if value := to(one); value != "" && !slices.Contains(all, value) {
			all = append(all, value)
		}
	}
	return all
}

// before returns list with first moved or added to its start.
func before[T comparable](first T, list []T) []T {
	return append([]T{first}, slices.DeleteFunc(slices.Clone(list), func(one T) bool { return one == first })...)
}
