package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// LabelValue is the value of a label: at most 63 letters, digits, hyphens, underscores and dots, or nothing.
type LabelValue string

// UnmarshalText checks a value like the API server.
func (v *LabelValue) UnmarshalText(text []byte) error {
	if s := string(text); s != "" && !isLabel(s) {
		return fmt.Errorf("%q is not a label value; use at most 63 letters, digits and . - _, with a letter or digit first and last", document.Shorten(s))
	}
	*v = LabelValue(text)
	return nil
}

// Annotation is the value of an annotation: any text.
type Annotation string

// maxAnnotation is the API server's limit in bytes for all annotations of an object.
const maxAnnotation = 256 << 10

// UnmarshalText reads any text that the API server accepts.
func (a *Annotation) UnmarshalText(text []byte) error {
	if len(text) > maxAnnotation {
		return fmt.Errorf("has %d bytes; an annotation has at most %d", len(text), maxAnnotation)
	}
	*a = Annotation(text)
	return nil
}

// Taint repels pods without a matching toleration from a node, in YAML in kubectl's syntax: key=value:Effect or
// key:Effect.
type Taint struct {
	Key, Value, Effect string
}

// taintEffects are the possible effects.
func taintEffects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// UnmarshalText reads a taint.
func (t *Taint) UnmarshalText(text []byte) error {
	pair, effect, _ := strings.Cut(string(text), ":")
	name, value, _ := strings.Cut(pair, "=")
	switch {
	case !isQualified(name), value != "" && !isLabel(value):
		return fmt.Errorf("want a taint such as dedicated=database:NoSchedule, have %q", document.Shorten(string(text)))
	case !slices.Contains(taintEffects(), effect):
		return fmt.Errorf("%q does not end with an effect: want :%s", document.Shorten(string(text)),
			document.Or(taintEffects()))
	}
	*t = Taint{name, value, effect}
	return nil
}

// String returns the taint in kubectl's syntax.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// MarshalText is String.
func (t Taint) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// isLabel reports whether s has only the characters of label names and values.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || strings.ContainsAny(s[:1]+s[len(s)-1:], ".-_") {
		return false
	}
	return document.Only(strings.ToLower(s), "-_.")
}

// isQualified reports whether s is [prefix/]name, as in names of labels, annotations and taints.
func isQualified(s string) bool {
	prefix, name, has := strings.Cut(s, "/")
	if !has {
		return isLabel(s)
	}
	return document.IsName(prefix, true) && isLabel(name)
}

// asStrings returns text values as strings.
func asStrings[T ~string](m map[string]T) map[string]string {
	if len(m) == 0 {
		return nil
	}
	texts := make(map[string]string, len(m))
	for k, v := range m {
		texts[k] = string(v)
	}
	return texts
}

// HostSettings are the values of a Cluster that can differ between hosts. Names and meaning are the Cluster's.
type HostSettings struct {
	Kubernetes           HostKubernetes `yaml:"kubernetes,omitempty" doc:"Settings of the kubelet."`
	ControlPlaneEndpoint HostEndpoint   `yaml:"controlPlaneEndpoint,omitempty" doc:"Settings of the endpoint."`
	Etcd                 HostEtcd       `yaml:"etcd,omitempty" doc:"Settings of etcd."`
	Precheck             Precheck       `yaml:"precheck,omitempty" doc:"Requirements for the host."`
}

// HostKubernetes is the part of Kubernetes that can differ between hosts.
type HostKubernetes struct {
	MaxPods int    `yaml:"maxPods,omitempty" doc:"Most pods on the node."`
	Kubelet Config `yaml:"kubelet,omitempty" doc:"Merged into KubeletConfiguration."`
}

// HostEndpoint is the part of Endpoint that can differ between hosts.
type HostEndpoint struct {
	Interface string `yaml:"interface,omitempty" doc:"Interface for kube-vip's address."`
}

// HostEtcd is the part of Etcd that can differ between hosts.
type HostEtcd struct {
	DataDir string `yaml:"dataDir,omitempty" doc:"Directory of the data. Default /var/lib/etcd."`
}

// Hint says what to write in the place of an unknown field.
func (*HostSettings) Hint(name string) string { return wholeCluster[Cluster](name) }

// Hint says what to write in the place of an unknown field.
func (*HostKubernetes) Hint(name string) string { return wholeCluster[Kubernetes](name) }

// Hint says what to write in the place of an unknown field.
func (*HostEndpoint) Hint(name string) string { return wholeCluster[Endpoint](name) }

// Hint says what to write in the place of an unknown field.
func (*HostEtcd) Hint(name string) string { return wholeCluster[Etcd](name) }

// wholeCluster refuses a setting for one host that must be the same on all.
func wholeCluster[T any](name string) string {
	if slices.ContainsFunc(document.Fields(reflect.TypeFor[T]()),
		func(f document.Field) bool { return f.Name == name }) {
		return "it is the same on all hosts; write it in the cluster file"
	}
	return ""
}
