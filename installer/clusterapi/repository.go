package clusterapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// Program is clusterctl.
	Program = "/usr/local/bin/clusterctl"
	// Dir has clusterctl's repository, PROVIDER/VERSION/FILE, and its configuration.
	// https://cluster-api.sigs.k8s.io/clusterctl/configuration#provider-repositories
	Dir = task.ConfigDir + "/cluster-api"
	// ConfigFile is clusterctl's configuration. clusterctl finds it there if $XDG_CONFIG_HOME is task.ConfigDir.
	ConfigFile = Dir + "/clusterctl.yaml"
)

// Names in the catalog.
const (
	core         = "cluster-api"
	bootstrap    = "cluster-api-bootstrap-kubeadm"
	controlPlane = "cluster-api-control-plane-kubeadm"
	metadata     = "cluster-api-metadata"
	own          = "cluster-api-provider"
	certManager  = "cert-manager"
)

// A source is a file of the catalog, under the name that clusterctl looks for.
type source struct{ component, name string }

// A part is a directory of the repository: a provider, or cert-manager, which is none.
type part struct {
	// dir is the provider's label in Cluster API, namespace that of its pods.
	dir, namespace string
	// Kind, Name and flag are the provider's for clusterctl; cert-manager has none.
	Kind, Name, flag string
	// files are in the directory of the version. The first one has the components, and its component has the images.
	files   []source
	Version string
}

// layout returns the providers, in the order of their installation, and then cert-manager.
func layout() []part {
	return []part{
		{
			dir: "cluster-api", namespace: "capi-system",
			Kind: "CoreProvider", Name: "cluster-api", flag: "--core",
			files: []source{{core, "core-components.yaml"}, {metadata, "metadata.yaml"}},
		},
		{
			dir: "bootstrap-kubeadm", namespace: "capi-kubeadm-bootstrap-system",
			Kind: "BootstrapProvider", Name: "kubeadm", flag: "--bootstrap",
			files: []source{{bootstrap, "bootstrap-components.yaml"}, {metadata, "metadata.yaml"}},
		},
		{
			dir: "control-plane-kubeadm", namespace: "capi-kubeadm-control-plane-system",
			Kind: "ControlPlaneProvider", Name: "kubeadm", flag: "--control-plane",
			files: []source{{controlPlane, "control-plane-components.yaml"}, {metadata, "metadata.yaml"}},
		},
		{
			dir: "infrastructure-kkbundle", namespace: "kkbundle-provider-system",
			Kind: "InfrastructureProvider", Name: "kkbundle", flag: "--infrastructure",
			files: []source{
				{own, "infrastructure-components.yaml"},
				{own + "-metadata", "metadata.yaml"},
				{own + "-template", "cluster-template.yaml"},
				{own + "-kube-vip", "cluster-template-kube-vip.yaml"},
				{own + "-topology", "cluster-template-topology.yaml"},
				{own + "-class", "clusterclass-kkbundle.yaml"},
			},
		},
		{dir: certManager, namespace: certManager, files: []source{{certManager, "cert-manager.yaml"}}},
	}
}

// parts returns the layout with the versions of the cluster.
func parts(c *manifest.Cluster) ([]part, error) {
	all := layout()
	for i := range all {
		version, err := catalog.Version(c, all[i].files[0].component)
		if err != nil {
			return all, err
		}
		all[i].Version = version
	}
	return all, nil
}

// providers returns the parts that clusterctl takes for providers.
func providers(all []part) []part {
	return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return p.Kind == "" })
}

// issuerOf returns cert-manager.
func issuerOf(all []part) part {
	return all[slices.IndexFunc(all, func(p part) bool { return p.dir == certManager })]
}

// path is the place of a file of the part.
func (p part) path(file string) string { return path.Join(Dir, p.dir, p.Version, file) }

// URL is the path of the components, by which clusterctl finds the repository.
func (p part) URL() string { return p.path(p.files[0].name) }

// Images returns the components of the catalog whose images run in pods on any node, of this cluster or of those that
// it manages: the template kube-vip has kube-vip's.
func Images(c *manifest.Cluster) []string {
	var names []string
	if c.ClusterAPI.Installed() {
		names = append(names, "kube-vip")
		for _, p := range layout() {
			names = append(names, p.files[0].component)
		}
	}
	return names
}

// repositoryTask brings clusterctl and its repository to every control plane. Earlier versions stay in the repository.
func repositoryTask(all []part, unknown error) task.Task {
	places := []task.Place{{Component: "clusterctl", Path: Program, Mode: task.Executable}}
	for _, p := range all {
		for _, f := range p.files {
			places = append(places, task.Place{Component: f.component, Path: p.path(f.name), Mode: 0o644})
		}
	}
	return task.Settle(task.Task{
		Name:        "clusterctl",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleControlPlane},
		Files:       places,
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		if unknown != nil {
			return task.Setting{}, unknown
		}
		have, err := t.Read(ctx, ConfigFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return task.Setting{}, err
		}
		further, err := furtherProviders(have, all)
		features, featuresErr := featuresOf(have)
		if err := cmp.Or(err, featuresErr); err != nil {
			return task.Setting{}, fmt.Errorf("%s: %w; mend the file, or remove it", ConfigFile, err)
		}
		data := config(all, further, features)
		return task.Setting{Files: []task.File{{Path: ConfigFile, Mode: 0o644, Data: data}}}, nil
	})
}

// A provider is an entry of clusterctl's configuration. As text it is JSON, which YAML takes.
type provider struct {
	Name string `json:"name"`
	Type string `json:"type"`
	URL  string `json:"url"`
}

func (p provider) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // texts can be encoded
	}
	return string(text)
}

// furtherProviders returns the entries of a configuration for other providers than those of the parts. clusterctl asks
// for the metadata of every provider in the cluster before it upgrades one.
func furtherProviders(text []byte, all []part) ([]provider, error) {
	var have struct {
		Providers []provider `json:"providers"`
	}
	if err := yaml.Unmarshal(text, &have); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(have.Providers, func(one provider) bool {
		return slices.ContainsFunc(all, func(p part) bool { return p.Kind == one.Type && p.Name == one.Name })
	}), nil
}

// features are those by which hosts are upgraded in place: "true" unless the operator has set them otherwise.
type features struct {
	RuntimeSDK     string `json:"EXP_RUNTIME_SDK"`
	InPlaceUpdates string `json:"EXP_IN_PLACE_UPDATES"`
}

// featuresOf returns the features of a configuration.
func featuresOf(text []byte) (features, error) {
	f := features{"true", "true"}
	err := yaml.Unmarshal(text, &f)
	return f, err
}

// configText is clusterctl's configuration. ClusterTopology, which a ClusterClass needs, is off by default, and so are
// RuntimeSDK and InPlaceUpdates. Further providers and the values of features are the operator's.
//
// clusterctl asks the module proxy or GitHub for its own newest version unless the check is disabled, and for versions
// of providers only if their repository is at GitHub.
const configText = hostfile.Mark + `
# clusterctl --config ` + ConfigFile + ` COMMAND
CLUSTERCTL_DISABLE_VERSIONCHECK: "true"
CLUSTER_TOPOLOGY: "true"
EXP_RUNTIME_SDK: {{printf "%q" .Features.RuntimeSDK}}
EXP_IN_PLACE_UPDATES: {{printf "%q" .Features.InPlaceUpdates}}
providers:
{{- range .Providers}}
  - {name: {{.Name}}, type: {{.Kind}}, url: {{.URL}}}
{{- end}}
{{- range .Further}}
  - {{.}}
{{- end}}
cert-manager: {url: {{.CertManager.URL}}, version: {{.CertManager.Version}}}
`

func config(all []part, further []provider, f features) []byte {
	var text bytes.Buffer
	err := template.Must(template.New(ConfigFile).Parse(configText)).Execute(&text, struct {
		Providers   []part
		Further     []provider
		Features    features
		CertManager part
	}{providers(all), further, f, issuerOf(all)})
	if err != nil {
		panic(err) // a buffer takes everything, and parts have these fields
	}
	return text.Bytes()
}
