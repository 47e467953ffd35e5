package precheck

import (
	"net/netip"
	"slices"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// ProbeFor returns the probe of a host for all checks. Directories are those of the host's Space and those that an
// installation writes to.
func ProbeFor(c *manifest.Cluster, h Host) node.Probe { return probeFor(network.All(), c, h) }

func probeFor(all network.Table, c *manifest.Cluster, h Host) node.Probe {
	c = c.WithDefaults()
	networks := all.Of(c)
	p := node.Probe{
		Units:       append(bootUnits(), "fapolicyd.service"),
		Executables: executables(),
		Paths: slices.Concat(leftoverPaths(c), []string{MarkerDir, cniDir, taskDir, storageDir, crioDir},
			policyFiles(containerPolicy), policyFiles(k3sPolicy), networkDirs(c, networks)),
		Modules:      modules(c, networks),
		KernelConfig: kernelOptions(),
		Sysctls:      sysctls(),
		Certificates: node.CertificatePlaces(node.PKICertificate),
		Internet:     dialAddresses(c, h.Host),
		Vacant:       vacancies(c, h.Host),
	}
	for _, port := range portsOf(c, networks, h.Host) {
		if port.network == "udp" {
			p.UDPPorts = append(p.UDPPorts, port.number)
		} else {
			p.Ports = append(p.Ports, port.number)
		}
	}
	for _, port := range nodeDNSPorts(c, h.Host) {
		if at := netip.AddrPortFrom(port.address, uint16(port.number)); !slices.Contains(p.Addresses, at) {
			p.Addresses = append(p.Addresses, at)
		}
	}
	for _, s := range h.Space {
		p.Dirs = append(p.Dirs, s.Dir)
	}
	p.Dirs = append(p.Dirs, "/usr/local/bin", "/opt", "/etc", "/var/lib/kubelet")
	if h.Is(manifest.RoleCluster) {
		p.Dirs = append(p.Dirs, runtimeData(c))
	}
	if hasEtcd(c, h.Host) {
		p.Dirs = append(p.Dirs, c.Etcd.DataDir)
		p.Sync = c.Etcd.DataDir
	}
	p.Dirs = unique(p.Dirs)
	return p
}

func unique(list []string) []string {
	var out []string
	for _, one := range list {
		if !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out
}

// dialAddresses returns the addresses that the host should test connections to.
func dialAddresses(c *manifest.Cluster, h manifest.Host) []string {
	var list []string
	if c.Precheck.Internet == manifest.InternetForbidden {
		list = append(list, internetAddresses()...)
	}
	if h.Is(manifest.RoleControlPlane) {
		list = append(list, etcdAddresses(c)...)
	}
	if h.Is(manifest.RoleCluster) {
		list = append(list, registryAddresses(c)...)
		list = append(list, endpointAddresses(c)...)
	}
	return unique(list)
}

// vacancies returns the shared addresses that the host may have to announce.
func vacancies(c *manifest.Cluster, h manifest.Host) []netip.Addr {
	var list []netip.Addr
	for _, vip := range sharedAddresses(c) {
		if vip.IsValid() && h.Is(vip.role) {
			list = append(list, vip.Addr)
		}
	}
	return list
}
