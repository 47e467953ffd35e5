package catalog

import (
	"errors"
	"fmt"
	"maps"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

const etcd = "etcd"

// Through returns the version that an upgrade of a component from a running version must take before the cluster's, ""
// if it may be upgraded directly.
func Through(c *manifest.Cluster, name, running string) (string, error) {
	r, err := newResolver(c)
	if err != nil {
		return "", err
	}
	to, err := r.version(name)
	if err != nil {
		return "", err
	}
	return through(r.Components[name].Through, running, to), nil
}

func through(list []catalogfile.Through, from, to string) string {
	have, haveErr := semver.NewVersion(from)
	want, wantErr := semver.NewVersion(to)
	if haveErr != nil || wantErr != nil {
		return "" // another version scheme
	}
	for _, one := range list {
		least, leastErr := semver.NewVersion(one.Least)
		line, lineErr := semver.NewVersion(one.To)
		if leastErr == nil && lineErr == nil && core(have).LessThan(core(least)) && !core(want).LessThan(core(line)) {
			return one.Take
		}
	}
	return ""
}

// throughEtcd gives kubeadm's etcd the versions that it must not skip: in the step before, or in a new first step of
// the minor release that the hosts have. External etcd has no steps.
func (r resolver) throughEtcd(steps []Step, demands []manifest.Demand) ([]Step, error) {
	k := r.cluster.Kubernetes
	if t := r.cluster.Etcd.Type; t == manifest.EtcdExternal || t == manifest.EtcdProvided ||
		k.Distribution == manifest.DistributionK3s {
		return steps, nil
	}
	from, err := semver.NewVersion(k.UpgradeFrom)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.upgradeFrom %q: %w", k.UpgradeFrom, err)
	}
	first := k.UpgradeFrom
	if known, err := semver.NewVersion(r.Releases[lineOf(from)]); err == nil && known.GreaterThan(from) {
		first = "v" + known.String()
	}
	all := append([]Step{{Cluster: r.cluster.At(first), Demands: demands}}, steps...)
	all[0].Cluster.Components = maps.Clone(all[0].Cluster.Components)
	delete(all[0].Cluster.Components, etcd) // the cluster file names that of its own release
	next := r.cluster
	for i := len(all) - 1; i >= 0; i-- {
		at := resolver{r.Catalog, all[i].Cluster}
		have, err := at.version(etcd)
		if err != nil && i == 0 {
			return steps, nil //nolint:nilerr // a release before those that the catalog knows
		}
		want, wantErr := resolver{r.Catalog, next}.version(etcd)
		if err != nil || wantErr != nil {
			return nil, fmt.Errorf("etcd versions on the upgrade path from %s: %w", k.UpgradeFrom,
				errors.Join(err, wantErr))
		}
		if take := through(r.Components[etcd].Through, have, want); take != "" {
			all[i].Etcd, all[i].Cluster = take, withEtcd(all[i].Cluster, take)
		}
		next = all[i].Cluster
	}
	if all[0].Etcd == "" {
		return all[1:], nil
	}
	return all, nil
}

// withEtcd returns the cluster with a version of kubeadm's etcd. It is in kubeadm's settings, too: nodes record
// these, so that an upgrade to another etcd of the same release has something to do.
func withEtcd(c *manifest.Cluster, tag string) *manifest.Cluster {
	d := *c
	d.Components = maps.Clone(d.Components)
	if d.Components == nil {
		d.Components = map[string]manifest.Component{}
	}
	one := d.Components[etcd]
	one.Version = tag
	d.Components[etcd] = one
	config := maps.Clone(d.Kubernetes.Kubeadm)
	if config == nil {
		config = manifest.Config{}
	}
	below := section(config, etcd)
	local := section(below, "local")
	local["imageTag"] = tag
	below["local"] = local
	config[etcd] = below
	d.Kubernetes.Kubeadm = config
	return &d
}

// section returns a copy of a part of kubeadm's settings.
func section(of map[string]any, key string) map[string]any {
	switch m := of[key].(type) {
	case map[string]any:
		return maps.Clone(m)
	case manifest.Config:
		return maps.Clone(m)
	}
	return map[string]any{}
}
