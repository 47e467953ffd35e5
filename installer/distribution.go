package installer

import "github.com/kkbundle/kkbundle/manifest"

// distributionOf returns the distribution of a cluster.
func distributionOf(c *manifest.Cluster) clusterDistribution {
	if c.Kubernetes.Distribution == manifest.DistributionK3s {
		return k3sDistribution()
	}
	return kubeadmDistribution()
}

// runtimeOf returns the runtime of a cluster's nodes. k3s brings its own.
func runtimeOf(c *manifest.Cluster) podRuntime {
	if c.Kubernetes.Distribution == manifest.DistributionK3s {
		return k3sRuntime()
	}
	switch c.CRI.Type {
	case manifest.RuntimeDocker:
		return dockerRuntime()
	case manifest.RuntimeCRIO:
		return crioRuntime()
	default:
		return containerdRuntime()
	}
}

// siteRegistryOf returns the registry of a cluster.
func siteRegistryOf(c *manifest.Cluster) siteRegistry {
	switch c.ImageRegistry.Type {
	case manifest.RegistryHarbor:
		return harborRegistry()
	case manifest.RegistryExisting:
		return existingRegistry()
	case manifest.RegistryNone:
		return siteRegistry{data: registryData}
	default:
		return plainRegistry(c)
	}
}

// networkOf returns the network of the pods' first interface.
func networkOf(c *manifest.Cluster) podNetwork {
	switch c.CNI.Primary() {
	case manifest.NetworkCalico:
		return calicoNetwork()
	case manifest.NetworkCilium:
		return ciliumNetwork()
	case manifest.NetworkHybridnet:
		return hybridnetNetwork()
	case manifest.NetworkKubeOVN:
		return kubeOVNNetwork()
	case manifest.NetworkNone:
		return podNetwork{}
	default:
		return flannelNetwork()
	}
}
