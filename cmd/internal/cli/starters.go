package cli

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

//go:embed starters
var starters embed.FS

// A starter is the input of the templates in starters: files that fit each other.
type starter struct {
	Name       string
	Kubernetes string
	Platforms  []string
	Cluster    bool          // false for applications alone
	Hosts      []starterHost // control planes first
	Registry   string        // address of the site's registry; "" installs one
}

// A starterHost is a line of the inventory.
type starterHost struct {
	Name, Address string // a range where both are; the address local is this machine
	ControlPlane  bool
}

const localAddress = "local"

// exampleStarter returns the content of files without any choice.
func exampleStarter() starter {
	return starter{
		Name: "site", Kubernetes: "v1.36.3", Platforms: []string{"linux/amd64"}, Cluster: true,
		Hosts: []starterHost{{"cp1", "192.168.0.3", true}, {"node[1:3]", "192.168.0.1[1:3]", false}},
	}
}

// Entry returns the host's line.
func (h starterHost) Entry() string {
	if h.Address == localAddress {
		return h.Name + ": {local: true}"
	}
	address := h.Address
	if strings.ContainsAny(address, ":[") {
		address = `"` + address + `"`
	}
	return h.Name + ": {address: " + address + "}"
}

// ControlPlanes returns the members of their group.
func (s starter) ControlPlanes() string { return s.group(true) }

// Workers returns the members of their group: the control planes if there is no other host.
func (s starter) Workers() string {
	if text := s.group(false); text != "" {
		return text
	}
	return s.group(true)
}

// First returns the first control plane.
func (s starter) First() string { return s.Hosts[0].Name }

func (s starter) group(controlPlane bool) string {
	var names []string
	for _, h := range s.Hosts {
		name := h.Name
		if strings.Contains(name, "[") {
			name = `"` + name + `"`
		}
		if h.ControlPlane == controlPlane {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// file returns a file's content.
func (s starter) file(name string) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{"join": func(list []string) string {
		return strings.Join(list,
			", ")
	}}).ParseFS(starters, "starters/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, s)
	return b.Bytes(), err
}

// files returns the names of the files that belong to the starter.
func (s starter) files() []string {
	if !s.Cluster {
		return []string{bundle.DocumentManifest}
	}
	return []string{bundle.DocumentManifest, bundle.DocumentCluster, site.DefaultInventory}
}

// render returns all files of the starter. The error is that of the command line: something in it does not fit.
func (s starter) render() (map[string][]byte, error) {
	content := map[string][]byte{}
	for _, name := range s.files() {
		data, err := s.file(name)
		if err != nil {
			return nil, err
		}
		content[name] = data
	}
	if err := s.check(content); err != nil {
		return nil, usage.Errorf("no files were written, because they would be wrong:\n%w", err)
	}
	return content, nil
}

// check checks rendered files, each by itself and together.
func (s starter) check(content map[string][]byte) error {
	if _, err := manifest.ParseBundle(bundle.DocumentManifest, content[bundle.DocumentManifest]); err != nil ||
		!s.Cluster {
		return err
	}
	c, err := manifest.ParseCluster(bundle.DocumentCluster, content[bundle.DocumentCluster])
	if err != nil {
		return err
	}
	inv, err := manifest.ParseInventory(site.DefaultInventory, content[site.DefaultInventory])
	if err != nil {
		return err
	}
	_, err = builder.CheckVersions(bundle.DocumentCluster, c.WithDefaults(), catalog.Options{Platforms: s.Platforms})
	return errors.Join(err, fit(inv, c))
}

// write writes the files to a directory, or none if one exists. It returns their paths.
func (s starter) write(dir string) ([]string, error) {
	content, err := s.render()
	if err != nil {
		return nil, err
	}
	var files newFiles
	for _, name := range s.files() {
		files = append(files, newFile{path: filepath.Join(dir, name), data: content[name]})
	}
	return files.writeForInit()
}

// newStarterCmd returns a command that writes one file as an example.
func newStarterCmd(g *globals, name, what string) *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write " + what + " as a starting point",
		Long: "Writes " + what + " with the most common keys and comments, to edit: " + name +
			" by default. An existing file is never replaced.\n" +
			"kkbundle init writes manifest, cluster file and inventory together.",
		Example: "  kkbundle " + parentOf(name) + " init",
		Args:    takes("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			file := slices.Concat(args, []string{name})[0]
			data, err := exampleStarter().file(name)
			if err != nil {
				return err
			}
			if exists(file) {
				return fmt.Errorf("%s exists and is not replaced: name another file", file)
			}
			if err := disk.WriteFile(file, 0o644, bytes.NewReader(data)); err != nil {
				return err
			}
			g.Note("wrote %s; change it, then: kkbundle %s check %s", file, parentOf(name), file)
			return nil
		},
	}
}

func parentOf(starter string) string {
	if starter == bundle.DocumentCluster {
		return "config"
	}
	return "inventory"
}
