package adopt

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// The texts that these functions read come from hosts and from the API server, and may be hostile. A YAML text is
// bounded by the reader of kkbundle's own files before another decodes it.

// yamlLimits bound a configuration: its size, and its values with aliases followed.
func yamlLimits() document.Limits { return document.Limits{Size: maxText, Values: 10_000} }

// decodeYAML decodes one bounded YAML document.
func decodeYAML(name, text string, into any) error {
	if _, err := document.Parse(name, []byte(text), yamlLimits()); err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// A kubeadmConfig is what adopt reads of kubeadm's ClusterConfiguration. Raw has all of it.
type kubeadmConfig struct {
	Kind                 string `json:"kind"`
	KubernetesVersion    string `json:"kubernetesVersion"`
	ClusterName          string `json:"clusterName"`
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	CertificatesDir      string `json:"certificatesDir"`
	ImageRepository      string `json:"imageRepository"`
	Networking           struct {
		PodSubnet     string `json:"podSubnet"`
		ServiceSubnet string `json:"serviceSubnet"`
		DNSDomain     string `json:"dnsDomain"`
	} `json:"networking"`
	Etcd struct {
		Local *struct {
			DataDir string `json:"dataDir"`
		} `json:"local"`
		External *externalEtcd `json:"external"`
	} `json:"etcd"`
	Raw map[string]any `json:"-"`
}

// externalEtcd are the addresses of etcd, and the files with which the API server asks it.
type externalEtcd struct {
	Endpoints []string `json:"endpoints"`
	CAFile    string   `json:"caFile"`
	CertFile  string   `json:"certFile"`
	KeyFile   string   `json:"keyFile"`
}

func parseKubeadm(text string) (kubeadmConfig, error) {
	const name = "ConfigMap kube-system/kubeadm-config"
	var c kubeadmConfig
	if strings.TrimSpace(text) == "" {
		return c, errors.New(name + " is missing, or has no ClusterConfiguration")
	}
	if err := decodeYAML(name, text, &c); err != nil {
		return c, err
	}
	if err := yaml.Unmarshal([]byte(text), &c.Raw); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	integers(c.Raw)
	if c.Kind != "ClusterConfiguration" {
		return c, fmt.Errorf("%s: kind %q, want ClusterConfiguration", name, document.Shorten(c.Kind))
	}
	return c, nil
}

// parseConfig reads the configuration of the kubelet or of kube-proxy; a missing one is nil.
func parseConfig(name, text, kind string) (map[string]any, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil //nolint:nilnil // a cluster may have none
	}
	var c map[string]any
	if err := decodeYAML(name, text, &c); err != nil {
		return nil, err
	}
	if c["kind"] != kind {
		return nil, fmt.Errorf("%s: want kind %s", name, kind)
	}
	integers(c)
	return c, nil
}

// integers replaces the whole numbers of JSON by int64, the type of a cluster file. It changes v and returns it.
func integers(v any) any {
	switch v := v.(type) {
	case float64:
		const exact = 1 << 53
		if n := int64(v); float64(n) == v && n > -exact && n < exact {
			return n
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = integers(v[name])
		}
	}
	return v
}

// A staticPod is one of a host's manifests.
type staticPod struct {
	file string
	pod  corev1.Pod
}

// parseStaticPod reads a static pod's manifest.
func parseStaticPod(file, text string) (staticPod, error) {
	s := staticPod{file: file}
	if err := decodeYAML(file, text, &s.pod); err != nil {
		return s, err
	}
	if s.pod.Kind != "Pod" || len(s.pod.Spec.Containers) == 0 {
		return s, fmt.Errorf("%s: it is no pod", file)
	}
	return s, nil
}

// image returns the image of the first container.
func (s *staticPod) image() string { return s.pod.Spec.Containers[0].Image }

// flags returns the arguments --NAME=VALUE of the first container. A later one wins.
func (s *staticPod) flags() map[string]string {
	c := s.pod.Spec.Containers[0]
	return flagsOf(slices.Concat(c.Command, c.Args))
}

// env returns the literal variables of the first container.
func (s *staticPod) env(name string) string {
	for _, v := range s.pod.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

func flagsOf(args []string) map[string]string {
	flags := map[string]string{}
	for _, a := range args {
		if name, value, ok := strings.Cut(a, "="); ok && strings.HasPrefix(name, "--") {
			flags[strings.TrimPrefix(name, "--")] = value
		}
	}
	return flags
}

// tagOf returns the tag of an image reference, "" without one.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	at := strings.LastIndexByte(image, ':')
	if at <= strings.LastIndexByte(image, '/') {
		return ""
	}
	return image[at+1:]
}

// releaseOf returns a tag or a version as a release, nil if it is none.
func releaseOf(text string) *semver.Version {
	v, err := semver.NewVersion(text)
	if err != nil || !strings.Contains(text, ".") {
		return nil
	}
	return v
}

// parseEnv reads NAME=VALUE lines, as systemd's EnvironmentFile has them.
func parseEnv(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		values[strings.TrimSpace(name)] = value
	}
	return values
}

// etcdMembers returns the names in ETCD_INITIAL_CLUSTER. A member with two addresses is there twice.
func etcdMembers(env map[string]string) []string {
	var names []string
	for one := range strings.SplitSeq(env["ETCD_INITIAL_CLUSTER"], ",") {
		if name, _, ok := strings.Cut(strings.TrimSpace(one), "="); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// A mirror is a registry that a container runtime asks in the place of another.
type mirror struct {
	// of is the name of the other, or _default for every one.
	of string
	// host is the mirror's host[:port][/path]. Logins in its URL are left out.
	host string
}

// parseHosts reads the hosts.toml of a registry: its first host is asked first.
func parseHosts(of, text string) (mirror, error) {
	var file struct {
		Host map[string]struct {
			// Without capabilities a host has all.
			Capabilities []string `toml:"capabilities"`
		} `toml:"host"`
	}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return mirror{}, tomlError(of+"/hosts.toml", err)
	}
	for _, key := range meta.Keys() {
		if len(key) != 2 || key[0] != "host" {
			continue
		}
		if c := file.Host[key[1]].Capabilities; c == nil || slices.Contains(c, "pull") {
			return mirror{of, addressOf(key[1])}, nil
		}
	}
	return mirror{}, nil
}

// A containerdConfig is what adopt reads of containerd's configuration, of version 2, 3 or 4.
type containerdConfig struct {
	// ConfigPath has the registries' hosts.toml.
	ConfigPath string
	Mirrors    []mirror
}

func parseContainerd(text string) (containerdConfig, error) {
	type registry struct {
		ConfigPath string `toml:"config_path"`
		Mirrors    map[string]struct {
			Endpoint []string `toml:"endpoint"`
		} `toml:"mirrors"`
	}
	var file struct {
		Plugins map[string]struct {
			Registry registry `toml:"registry"`
		} `toml:"plugins"`
	}
	if _, err := toml.Decode(text, &file); err != nil {
		return containerdConfig{}, tomlError(containerdTOML, err)
	}
	var c containerdConfig
	for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"} {
		r := file.Plugins[plugin].Registry
		if r.ConfigPath != "" {
			c.ConfigPath = r.ConfigPath
		}
		for of, m := range r.Mirrors {
			if len(m.Endpoint) > 0 {
				c.Mirrors = append(c.Mirrors, mirror{of, addressOf(m.Endpoint[0])})
			}
		}
	}
	slices.SortFunc(c.Mirrors, func(a, b mirror) int { return strings.Compare(a.of, b.of) })
	return c, nil
}

// tomlError leaves out the text around a mistake: it may have a login.
func tomlError(name string, err error) error {
	if at, ok := errors.AsType[toml.ParseError](err); ok {
		return fmt.Errorf("%s: line %d is not TOML", name, at.Position.Line)
	}
	return fmt.Errorf("%s: it is not what containerd reads", name)
}

// addressOf returns host[:port][/path] of a registry's URL. /v2, which containerd wants in a path, is left out.
func addressOf(text string) string {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	path := strings.TrimSuffix(u.Path, "/")
	if rest, ok := strings.CutPrefix(path, "/v2"); ok && (rest == "" || rest[0] == '/') {
		path = rest
	}
	return u.Host + path
}
