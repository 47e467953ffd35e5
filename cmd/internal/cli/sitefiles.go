package cli

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

//go:embed starters
var starters embed.FS

// addSet adds the flag whose settings are laid over the cluster file.
func addSet(fs *pflag.FlagSet, settings *[]string) {
	fs.StringArrayVar(settings, "set", nil, "`PATH=VALUE`, as in kubernetes.maxPods=200: wins over the cluster file and the inventory; can be repeated")
}

// readInventory reads an inventory of kkbundle or KubeKey and prints what of it was not carried over.
func (g *globals) readInventory(file string) (*manifest.Inventory, error) {
	if file == "" {
		return nil, &usageError{errors.New("say which hosts with -i INVENTORY")}
	}
	data, err := build.ReadFile(file)
	if err != nil {
		return nil, err
	}
	inv, notes, err := kubekey.ReadInventory(file, data)
	g.noteProblems(notes)
	return inv, err
}

// parseCluster is readInventory for a cluster file that was read.
func (g *globals) parseCluster(file string, data []byte, settings []string) (*manifest.Cluster, error) {
	c, notes, err := kubekey.ReadCluster(file, data, settings...)
	g.noteProblems(notes)
	return c, err
}

// readCluster is readInventory for a cluster file.
func (g *globals) readCluster(file string, settings []string) (*manifest.Cluster, error) {
	data, err := build.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return g.parseCluster(file, data, settings)
}

// noteProblems prints places of files that somebody should look at and that stop nothing.
func (g *globals) noteProblems(list []manifest.Problem) {
	var lines []string
	for _, p := range list {
		lines = append(lines, p.String())
	}
	g.noteAll(lines)
}

// noteGaps prints what install does not do yet.
func (g *globals) noteGaps(err error) {
	var gaps manifest.Problems
	if errors.As(err, &gaps) {
		g.noteProblems(gaps)
	}
}

// newInitCmd writes a file to begin with.
func newInitCmd(g *globals, name, what string) *cobra.Command {
	return &cobra.Command{
		Use:     "init [FILE]",
		Short:   "Write " + what + " as a starting point",
		Long:    "Writes " + what + " with the most common keys and comments, to be changed: " + name + " unless another name is given. A file that is there is never replaced.",
		Example: "  kkbundle " + parentOf(name) + " init",
		Args:    takes("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			file := slices.Concat(args, []string{name})[0]
			data, err := starters.ReadFile("starters/" + name)
			if err != nil {
				return err
			}
			if exists(file) {
				return fmt.Errorf("%s is there, and is not replaced: name another file", file)
			}
			if err := disk.WriteFile(file, 0o644, bytes.NewReader(data)); err != nil {
				return err
			}
			g.note("wrote %s; change it, then: kkbundle %s check %s", file, parentOf(name), file)
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

// What show can print.
const (
	showTable = "table"
	showYAML  = "yaml"
	showJSON  = "json"
)

// showFormat is the value of -o, which --json overrules.
func (g *globals) showFormat(o string) (string, error) {
	switch {
	case g.json:
		return showJSON, nil
	case slices.Contains([]string{showTable, showYAML, showJSON}, o):
		return o, nil
	}
	return "", &usageError{fmt.Errorf("-o %s: want table, yaml or json", o)}
}

// printYAML writes one document.
func (g *globals) printYAML(v any) error {
	e := yaml.NewEncoder(g.Out)
	e.SetIndent(2)
	return errors.Join(e.Encode(v), e.Close())
}

// checkResult is what inventory check and config check print with --json.
type checkResult struct {
	Version int    `json:"version"` // 1
	File    string `json:"file"`
	Hosts   int    `json:"hosts,omitempty"`
}
