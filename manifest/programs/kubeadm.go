package programs

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// shape lists the keys of a mapping in ClusterConfiguration with their own shapes; nil for unchecked content.
type shape map[string]shape

// clusterConfiguration returns the shape of kubeadm's ClusterConfiguration in v1beta3 or v1beta4.
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/#kubeadm-k8s-io-v1beta4-ClusterConfiguration
func clusterConfiguration(beta4 bool) shape {
	component := func(more ...string) shape {
		s := shape{"extraArgs": nil, "extraVolumes": nil}
		if beta4 {
			s["extraEnvs"] = nil
		}
		for _, name := range more {
			s[name] = nil
		}
		return s
	}
	api := component("certSANs")
	dns := shape{"imageRepository": nil, "imageTag": nil}
	local := component("imageRepository", "imageTag", "dataDir", "serverCertSANs", "peerCertSANs")
	delete(local, "extraVolumes")
	root := shape{
		"etcd": {"local": local, "external": {
			"endpoints": nil, "caFile": nil, "certFile": nil,
			"keyFile": nil,
		}},
		"networking":      {"serviceSubnet": nil, "podSubnet": nil, "dnsDomain": nil},
		"apiServer":       api,
		"dns":             dns,
		"featureGates":    nil,
		"certificatesDir": nil, "imageRepository": nil, "clusterName": nil, "kubernetesVersion": nil,
		"controlPlaneEndpoint": nil,
		"apiVersion":           nil, "kind": nil,
		"controllerManager": component(), "scheduler": component(),
	}
	if !beta4 {
		api["timeoutForControlPlane"] = nil
		return root
	}
	dns["disabled"] = nil
	root["proxy"] = shape{"disabled": nil}
	for _, name := range []string{"encryptionAlgorithm", "certificateValidityPeriod", "caCertificateValidityPeriod"} {
		root[name] = nil
	}
	return root
}

// kubeadmChecker finds settings that kubeadm would refuse or ignore only after the cluster is half installed.
type kubeadmChecker struct {
	*document.Checker
	beta4 bool // ClusterConfiguration is v1beta4; v1beta3 otherwise
}

// Check checks the configurations of a release's programs, by section, and the patch files for kubeadm.
func Check(c *document.Checker, release *semver.Version, configs map[Section]map[string]any, patches []string) {
	k := kubeadmChecker{c, !release.LessThan(semver.New(1, 31, 0, "", ""))}
	k.shaped("kubernetes.kubeadm", configs[Kubeadm], clusterConfiguration(k.beta4))
	for section, program := range map[string]string{
		"apiServer": "kube-apiserver", "controllerManager": "kube-controller-manager", "scheduler": "kube-scheduler",
	} {
		config, _ := configs[Kubeadm][section].(map[string]any)
		if !slices.ContainsFunc(patches, func(f string) bool { return strings.HasPrefix(path.Base(f), program) }) {
			k.mounts(section, program, config)
		}
	}
	for section, config := range configs {
		CheckReserved(c, document.Join("kubernetes", string(section)), section, config)
	}
	k.patches(patches, release)
}

// shaped checks the keys of a mapping, and lists merged by name.
func (c *kubeadmChecker) shaped(at string, m map[string]any, s shape) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		below, known := s[name]
		here := document.Join(at, name)
		inner, isMap := m[name].(map[string]any)
		switch {
		case !known:
			c.AddKey(here, "kubeadm has no such key here%s", document.DidYouMean(name, slices.Sorted(maps.Keys(s))))
		case name == "extraArgs":
			c.extraArgs(here, m[name])
		case name == "extraEnvs", name == "extraVolumes":
			c.named(here, m[name])
		case strings.HasSuffix(name, "SANs"):
			c.subjects(here, m[name])
		case below != nil && isMap:
			c.shaped(here, inner, below)
		case below != nil && m[name] != nil:
			c.Add(here, "want a mapping")
		}
	}
}

// extraArgs checks arguments, in either API version's form.
func (c *kubeadmChecker) extraArgs(at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			c.argument(document.Join(at, name), name, v[name])
		}
	case []any:
		seen := map[string]bool{}
		for i, one := range v {
			m, _ := one.(map[string]any)
			name, _ := m["name"].(string)
			if name == "" || len(m) != 2 {
				c.Add(document.Index(at, i), "want name and value")
				continue
			}
			c.argument(document.Index(at, i), name, m["value"])
			if seen[name] && !c.beta4 {
				c.Add(document.Index(at, i), "%s is there twice, which kubeadm before 1.31 cannot pass on",
					document.Shorten(name))
			}
			seen[name] = true
		}
	case nil:
	default:
		c.Add(at, "want arguments as NAME: VALUE, or a list of name and value")
	}
}

// mounts checks that the files that arguments name are in the program's pod: without them it does not start.
func (c *kubeadmChecker) mounts(section, program string, config map[string]any) {
	below := document.Join(section, "extraArgs")
	// Those of kubeadm (cmd/kubeadm/app/phases/controlplane/volumes.go), and kkbundle's own.
	mounted := []string{
		"/etc/kubernetes/pki", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki", "/usr/share/ca-certificates",
		"/usr/local/share/ca-certificates", "/etc/kubernetes/security", "/etc/kubernetes/scheduler.conf",
		"/etc/kubernetes/controller-manager.conf",
	}
	volumes, _ := config["extraVolumes"].([]any)
	for _, v := range volumes {
		m, _ := v.(map[string]any)
		if p, _ := m["mountPath"].(string); p != "" {
			mounted = append(mounted, path.Clean(p))
		}
	}
	for _, a := range arguments(document.Join("kubernetes.kubeadm", below), config["extraArgs"]) {
		file, _ := a.value.(string)
		if !path.IsAbs(file) || !namesFile(a.name) || isReserved(Kubeadm, below, a.name) {
			continue
		}
		file = path.Clean(file)
		if slices.ContainsFunc(mounted, func(dir string) bool {
			return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
		}) {
			continue
		}
		c.Add(a.at, "%s: %s does not see %s of its host and would not start: mount the file with extraVolumes", a.name,
			program, document.Shorten(file))
	}
}

// namesFile reports whether an argument of the control plane names a file that its program reads.
func namesFile(argument string) bool {
	return argument == "config" || strings.HasSuffix(argument, "-config") || strings.HasSuffix(argument, "-file") ||
		strings.HasSuffix(argument, "kubeconfig")
}

// A namedArgument is one of a program, with its place in the cluster file.
type namedArgument struct {
	at, name string
	value    any
}

// arguments returns those of either API version's form that are well formed.
func arguments(at string, v any) []namedArgument {
	var list []namedArgument
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, namedArgument{document.Join(at, name), name, v[name]})
		}
	case []any:
		for i, one := range v {
			m, _ := one.(map[string]any)
			if name, _ := m["name"].(string); name != "" {
				list = append(list, namedArgument{document.Index(at, i), name, m["value"]})
			}
		}
	}
	return list
}

func (c *kubeadmChecker) argument(at, name string, value any) {
	if strings.HasPrefix(name, "-") {
		c.Add(at, "write the argument's name without dashes")
	}
	switch value.(type) {
	case map[string]any, []any:
		c.Add(at, "want one value; write a list as text with commas")
	}
}

// named checks that a list's entries have unique names.
func (c *kubeadmChecker) named(at string, v any) {
	list, ok := v.([]any)
	if !ok && v != nil {
		c.Add(at, "want a list")
	}
	var seen []string
	for i, one := range list {
		m, _ := one.(map[string]any)
		name, _ := m["name"].(string)
		switch {
		case name == "":
			c.Add(document.Index(at, i), "name is missing")
		case slices.Contains(seen, name):
			c.Add(document.Index(at, i), "%s is there twice", document.Shorten(name))
		}
		seen = append(seen, name)
	}
}

// subjects checks names and addresses of a certificate.
func (c *kubeadmChecker) subjects(at string, v any) {
	list, ok := v.([]any)
	if !ok && v != nil {
		c.Add(at, "want a list")
	}
	for i, one := range list {
		s, ok := one.(string)
		_, err := netip.ParseAddr(s)
		switch {
		case !ok:
			c.Add(document.Index(at, i), "want text")
		case err != nil && !document.IsName(strings.TrimPrefix(s, "*."), true):
			c.Add(document.Index(at, i), "%q is neither an address nor a DNS name in lower case; kubeadm refuses it",
				document.Shorten(s))
		}
	}
}

// patchName is kubeadm's pattern for names of patch files: target, anything, and the kind of patch.
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/control-plane-flags/#patches
const patchName = `^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubeletconfiguration|corednsdeployment)[^.+\n]*(\+(strategic|merge|json))?\.(json|yaml)$`

// patches checks the names of patch files: kubeadm ignores files whose names it does not understand.
func (c *kubeadmChecker) patches(list []string, v *semver.Version) {
	named := regexp.MustCompile(patchName)
	first := map[string]int{}
	for i, file := range list {
		at, name := document.Index("kubernetes.patches", i), path.Base(file)
		target := named.FindStringSubmatch(name)
		switch at1, twice := document.Earlier(first, name, i); {
		case target == nil:
			c.Add(at, "%q is not a patch name; write TARGET[SUFFIX][+TYPE].yaml, such as kube-apiserver0+merge.yaml or kubeletconfiguration+strategic.yaml", document.Shorten(name))
		case twice:
			c.Add(at, "%s is there twice, first on %s; give it a suffix, such as %s1", document.Shorten(name),
				c.Place(document.Index("kubernetes.patches", at1)), target[1])
		case target[1] == "corednsdeployment" && v.LessThan(semver.New(1, 32, 0, "", "")):
			c.Add(at, "kubeadm patches CoreDNS since 1.32, and this is %s", fmt.Sprint(v))
		}
	}
}
