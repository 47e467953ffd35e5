package adopt

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
)

// programs describes the settings of kubeadm, the kubelet and kube-proxy that are neither their defaults nor kubeadm's,
// and not kkbundle's to make.
func (d *describer) programs() {
	k := &d.cluster.Kubernetes
	k.Kubeadm = d.kubeadmSettings()
	d.kubeletSettings()
	d.proxySettings()
	if kept := len(k.Kubeadm) + len(k.Kubelet) + len(k.KubeProxy); kept > 0 {
		d.care("settings", plain.Count(kept, "setting")+" of kubeadm, kubelet and kube-proxy, in cluster.yaml")
	}
}

// kubeadmSettings returns arguments, volumes and names of certificates of the control plane. Variables are left out:
// they may be secrets.
func (d *describer) kubeadmSettings() manifest.Config {
	raw := manifest.Config{}
	for _, part := range []struct {
		at   []string
		keys []string
	}{
		{[]string{"apiServer"}, []string{"extraArgs", "extraVolumes", "certSANs"}},
		{[]string{"controllerManager"}, []string{"extraArgs", "extraVolumes"}},
		{[]string{"scheduler"}, []string{"extraArgs", "extraVolumes"}},
		{[]string{"etcd", "local"}, []string{"extraArgs", "serverCertSANs", "peerCertSANs"}},
	} {
		m := d.kubeadm.Raw
		for _, name := range part.at {
			m, _ = m[name].(map[string]any)
		}
		section := strings.Join(part.at, ".")
		if filled(m["extraEnvs"]) {
			d.gap("variables", section+" has extraEnvs, which may be secrets and are not copied",
				"write them under kubernetes.kubeadm."+section)
		}
		for _, key := range part.keys {
			if filled(m[key]) {
				put(raw, m[key], append(slices.Clone(part.at), key)...)
			}
		}
	}
	if gates := d.kubeadm.Raw["featureGates"]; filled(gates) {
		raw["featureGates"] = gates
	}
	d.kubeadmRest()
	return d.without(programs.Kubeadm, raw)
}

// put sets a value below the names of a path.
func put(m map[string]any, v any, path ...string) {
	for _, name := range path[:len(path)-1] {
		below, _ := m[name].(map[string]any)
		if below == nil {
			below = map[string]any{}
			m[name] = below
		}
		m = below
	}
	m[path[len(path)-1]] = v
}

// filled reports whether a value is a list or a mapping with something in it.
func filled(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}

// kubeletSettings sets those of the kubelet. kubeadm writes some that are its own defaults.
func (d *describer) kubeletSettings() {
	c := without(d.kubelet, map[string]any{
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
		"authorization": map[string]any{"mode": "Webhook"}, "cgroupDriver": "systemd",
		"healthzBindAddress": "127.0.0.1", "healthzPort": int64(10248), "rotateCertificates": true,
		"staticPodPath": "/etc/kubernetes/manifests", "resolvConf": "/run/systemd/resolve/resolv.conf",
	}, kubeletZeros())
	if n, err := strconv.Atoi(fmt.Sprint(c["maxPods"])); err == nil && n > 0 {
		d.cluster.Kubernetes.MaxPods = n
	}
	d.cluster.Kubernetes.Kubelet = d.without(programs.Kubelet, c)
}

// proxySettings sets those of kube-proxy.
func (d *describer) proxySettings() {
	if d.proxy == nil {
		d.gap("kube-proxy", "the cluster has none, and kkbundle's clusters always have it",
			"an upgrade would install it: keep upgrading this cluster with its own tool")
		return
	}
	mode, _ := d.proxy["mode"].(string)
	switch mode {
	case "", string(manifest.ProxyIPTables), string(manifest.ProxyNFTables), string(manifest.ProxyIPVS):
		d.cluster.Kubernetes.ProxyMode = manifest.ProxyMode(mode)
	default:
		d.gap("kube-proxy", fmt.Sprintf("mode %q is none that kkbundle knows", document.Shorten(mode)),
			"write kubernetes.proxyMode")
	}
	d.cluster.Kubernetes.KubeProxy = d.without(programs.KubeProxy, without(d.proxy, map[string]any{
		"bindAddress": "0.0.0.0", "clientConnection": map[string]any{"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
	}, proxyZeros()))
}

// without drops what may be secret, and the settings that kkbundle makes itself. The report names those of the second
// kind whose values are nowhere in the cluster file.
func (d *describer) without(section programs.Section, config manifest.Config) manifest.Config {
	kept, dropped := programs.Without(section, d.withoutSecrets(section, config))
	own := d.ownValues(section)
	for _, one := range dropped {
		value := fmt.Sprint(one.Value)
		if one.Path == "apiVersion" || one.Path == "kind" || slices.Contains(own[one.Path], value) {
			continue
		}
		d.gap("settings", fmt.Sprintf("%s %s is %q, and is not copied", section, one.Path, document.Shorten(value)), one.Instead)
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// without returns a configuration without empty values and without those that are the same in other. zeros are the
// settings whose zero is no value.
func without(config, other map[string]any, zeros []string) manifest.Config {
	kept := manifest.Config{}
	for name, v := range config {
		v, some := pruned(name, v, zeros)
		if !some || reflect.DeepEqual(v, other[name]) {
			continue
		}
		kept[name] = v
	}
	return kept
}

// pruned returns the value at a path without its empty parts. Programs write their whole configuration, and mean their
// defaults by what is empty: null, "", what has only those, and the 0 and 0s of zeros. Any other 0 is kept, and false:
// they may differ from the default.
func pruned(at string, v any, zeros []string) (kept any, some bool) {
	switch v := v.(type) {
	case nil:
		return nil, false
	case int64:
		return v, v != 0 || !slices.Contains(zeros, at)
	case string:
		if v == "0" || v == "0s" {
			return v, !slices.Contains(zeros, at)
		}
		return v, v != "" || at == "resolvConf" // the kubelet's: "" gives pods no name servers of the host
	case []any:
		return v, len(v) > 0 || at == "enforceNodeAllocatable" // the kubelet's default is [pods]
	case map[string]any:
		m := map[string]any{}
		for name, one := range v {
			if one, ok := pruned(document.Join(at, name), one, zeros); ok {
				m[name] = one
			}
		}
		return m, len(m) > 0 || at == "evictionHard" && len(v) == 0 // the kubelet's default has limits
	}
	return v, true
}
