package adopt

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Names of the written files.
const (
	ClusterFile   = "cluster.yaml"
	InventoryFile = "inventory.yaml"
)

// settle reads the cluster as its file will be read. Settings of programs that kkbundle refuses are left out and
// reported; whatever else it refuses is an error.
func (d *describer) settle(inv *manifest.Inventory) (*manifest.Cluster, error) {
	c, err := d.parse()
	k := &d.cluster.Kubernetes
	for _, section := range []struct {
		name   string
		config *manifest.Config
	}{{"kubeadm", &k.Kubeadm}, {"kubelet", &k.Kubelet}, {"kubeProxy", &k.KubeProxy}} {
		if err == nil {
			break
		}
		before, kept := err, *section.config
		*section.config = nil
		c, err = d.parse()
		if len(kept) > 0 && len(problemsOf(err)) < len(problemsOf(before)) {
			d.gap("settings of "+section.name, "kkbundle refuses them: "+firstLine(before),
				"write those that are needed under kubernetes."+section.name)
			continue
		}
		*section.config = kept
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster makes no file that kkbundle reads; nothing was written:\n%w", err)
	}
	for _, p := range problemsOf(c.CheckInstall()) {
		d.gap("install", "it refuses: "+p.Message, "change it in "+ClusterFile)
	}
	if notes, err := catalog.Check(c); err != nil {
		d.gap("versions", firstLine(err), "upgrade with the tool that made the cluster until kkbundle knows the versions")
	} else {
		for _, n := range notes {
			d.change(Change{What: "versions", Text: n})
		}
	}
	for _, p := range problemsOf(inv.Check(c)) {
		d.gap("hosts", p.Message, "change it in "+InventoryFile)
	}
	return c, nil
}

func (d *describer) parse() (*manifest.Cluster, error) {
	data, err := yaml.Marshal(d.cluster)
	if err != nil {
		return nil, err
	}
	return manifest.ParseCluster(ClusterFile, data)
}

func problemsOf(err error) document.Problems {
	list, _ := errors.AsType[document.Problems](err)
	return list
}

func firstLine(err error) string {
	if list := problemsOf(err); len(list) > 0 {
		return list[0].Message
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
