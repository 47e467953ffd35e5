package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// k3s configures K3s and RKE2, which generate containerd's configuration from their own file when they start.
// https://docs.k3s.io/installation/private-registry
func k3s(runtime Runtime, r Registry, upstreams []string) (Configuration, error) {
	dir := path.Join("/etc/rancher", string(runtime))
	caPath := path.Join(dir, "kkbundle-ca.crt")
	type endpoint struct {
		Endpoint []string          `yaml:"endpoint"`
		Rewrite  map[string]string `yaml:"rewrite,omitempty"`
	}
	type tlsConfig struct {
		CAFile string `yaml:"ca_file"`
	}
	type auth struct {
		Username string `yaml:"username"`
		Password string `yaml:"password"`
	}
	type config struct {
		Auth *auth      `yaml:"auth,omitempty"`
		TLS  *tlsConfig `yaml:"tls,omitempty"`
	}
	var file struct {
		Mirrors map[string]endpoint `yaml:"mirrors"`
		Configs map[string]config   `yaml:"configs,omitempty"`
	}
	to := func(path string) endpoint {
		return endpoint{[]string{r.url()}, map[string]string{"^(.*)$": path + "/$1"}}
	}
	file.Mirrors = map[string]endpoint{"*": to(r.missing())}
	for _, u := range upstreams {
		file.Mirrors[u] = to(r.path(u))
	}
	file.Mirrors[r.Host] = endpoint{Endpoint: []string{r.url()}} // "*" does not cover it
	var c Configuration
	login := config{}
	if len(r.CA) > 0 {
		login.TLS = &tlsConfig{caPath}
		c.Files = append(c.Files, caFile(r, caPath))
	}
	if r.Username != "" {
		login.Auth = &auth{r.Username, r.Password}
	}
	if login != (config{}) {
		file.Configs = map[string]config{r.Host: login}
	}
	var b bytes.Buffer
	b.WriteString(hostfile.Mark + "\n")
	e := yaml.NewEncoder(&b)
	const indent = 2
	e.SetIndent(indent)
	if err := e.Encode(file); err != nil {
		return c, fmt.Errorf("registries.yaml: %w", err)
	}
	c.Files = append(c.Files, hostfile.File{
		Path: path.Join(dir, "registries.yaml"), Mode: r.mode(), Data: b.Bytes(), Secrecy: r.secrecy(),
		Merge: mergeYAML,
	})
	c.Notes = append(c.Notes,
		fmt.Sprintf("%s reads registries.yaml when it starts", runtime),
		fmt.Sprintf("%s contacts upstream itself if the registry lacks an image, unless it runs with --disable-default-registry-endpoint", runtime))
	return c, nil
}

// mergeYAML merges one mapping into another, recursively. Contradictions are replaced only with force. Existing
// comments and order stay. A file that begins with our mark is ours, and replaced.
func mergeYAML(have, data []byte, force bool) ([]byte, error) {
	if bytes.HasPrefix(have, []byte(hostfile.Mark)) || len(bytes.TrimSpace(have)) == 0 {
		return data, nil
	}
	var theirs, ours, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(have))
	if err := d.Decode(&theirs); errors.Is(err, io.EOF) {
		return data, nil
	} else if err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if theirs.Content[0].Kind != yaml.MappingNode {
		if force {
			return data, nil
		}
		return nil, errors.New("not a mapping")
	}
	if err := yaml.Unmarshal(data, &ours); err != nil {
		return nil, err
	}
	m := merging{force: force}
	m.mapping(theirs.Content[0], ours.Content[0], "")
	if len(m.conflicts) > 0 {
		return nil, fmt.Errorf("different value for %s", strings.Join(m.conflicts, ", "))
	}
	if !m.changed {
		return have, nil
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	const indent = 2
	e.SetIndent(indent)
	err := e.Encode(&theirs)
	return b.Bytes(), err
}

type merging struct {
	force, changed bool
	conflicts      []string
}

// mapping adds the entries of one mapping to another. Values other than mappings must be equal.
func (m *merging) mapping(to, from *yaml.Node, at string) {
	if to.ShortTag() == "!!null" {
		*to = *from
		m.changed = true
		return
	}
	if to.Kind != yaml.MappingNode || from.Kind != yaml.MappingNode {
		if !same(to, from) {
			m.contradict(to, from, at)
		}
		return
	}
	for i := 0; i+1 < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		found := false
		for j := 0; j+1 < len(to.Content); j += 2 {
			if to.Content[j].Value == key.Value {
				m.mapping(to.Content[j+1], value, strings.TrimPrefix(at+"."+key.Value, "."))
				found = true
			}
		}
		if !found {
			to.Content = append(to.Content, key, value)
			m.changed = true
		}
	}
}

func (m *merging) contradict(to, from *yaml.Node, at string) {
	if !m.force {
		m.conflicts = append(m.conflicts, at)
		return
	}
	*to = *from
	m.changed = true
}

func same(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && slices.EqualFunc(a.Content, b.Content, same)
}
