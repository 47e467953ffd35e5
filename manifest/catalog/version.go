package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// kubernetes is the name of Kubernetes itself in Follows.
// Components that others follow in their versions.
const (
	kubernetes = "kubernetes"
	clusterAPI = "cluster-api"
)

// version returns the version of a component in the cluster. via are the components that led here.
func (r resolver) version(name string, via ...string) (string, error) {
	if name == kubernetes {
		return r.cluster.Kubernetes.Version, nil
	}
	one, err := r.component(name)
	if err != nil {
		return "", err
	}
	if slices.Contains(via, name) {
		return "", fmt.Errorf("components %s follow each other in the catalog", strings.Join(append(via, name), ", "))
	}
	if v, _ := r.chosen(name); v != "" {
		return v, nil
	}
	return r.usual(name, one, via...)
}

// usual returns a component's version if the cluster does not set it.
func (r resolver) usual(name string, one catalogfile.CatalogEntry, via ...string) (string, error) {
	if one.Default != "" {
		return one.Default, nil
	}
	leader := leaderOf(one)
	if listed := r.Kubeadm[r.cluster.Kubernetes.Version].Tag(name); listed != "" && leader == kubernetes {
		return listed, nil
	}
	base, err := r.version(leader, append(via, name)...)
	if err != nil || len(one.Since) == 0 {
		return base, err
	}
	v, err := semver.NewVersion(base)
	if err != nil {
		return "", fmt.Errorf("%s version %q: %w", leader, base, err)
	}
	found := lookup(one.Since, v)
	if found == "" {
		return "", &tooOldError{name, tooOld{titles(leader), base, oldest(one.Since)}}
	}
	return found, nil
}

// A tooOldError means that the catalog knows a component for later releases only.
type tooOldError struct {
	component string
	tooOld
}

// Error names the component and the remedy.
func (e *tooOldError) Error() string {
	return fmt.Sprintf("component %s: no version is known that goes with %s %s; the first known is for %s; name one in the cluster file under components.%s.version",
		e.component, e.leader, e.release, e.first, e.component)
}

// tooOld is the cause of a tooOldError, which components share.
type tooOld struct{ leader, release, first string }

func leaderOf(one catalogfile.CatalogEntry) string {
	if one.Follows == "" {
		return kubernetes
	}
	return one.Follows
}

// chosen returns the version that the cluster file sets for a component, with its path.
func (r resolver) chosen(name string) (version, path string) {
	c := r.cluster
	own := func(kind, usual string) bool { return kind == name || kind == "" && name == usual }
	switch {
	case c.Components[name].Version != "":
		return c.Components[name].Version, "components[" + name + "].version"
	case c.CRI.Version != "" && own(string(c.CRI.Type), "containerd"):
		return c.CRI.Version, "cri.version"
	case c.CNI.Version != "" && own(string(c.CNI.Type), "flannel"):
		return c.CNI.Version, "cni.version"
	case c.ClusterAPI.Version != "" && name == clusterAPI:
		return c.ClusterAPI.Version, "clusterAPI.version"
	case c.ClusterAPI.Provider != "" && name == "cluster-api-provider":
		return c.ClusterAPI.Provider, "clusterAPI.provider"
	}
	return "", ""
}

// lookup returns a table's value for the last release not newer than v; "" before the first.
func lookup(table map[string]string, v *semver.Version) string {
	var best *semver.Version
	found := ""
	for from, value := range table {
		f, err := semver.NewVersion(from)
		if err == nil && !f.GreaterThan(v) && (best == nil || f.GreaterThan(best)) {
			best, found = f, value
		}
	}
	return found
}

func oldest(table map[string]string) string {
	var first *semver.Version
	for from := range table {
		if v, err := semver.NewVersion(from); err == nil && (first == nil || v.LessThan(first)) {
			first = v
		}
	}
	if first == nil {
		return "none"
	}
	return "v" + first.String()
}

// filler replaces the catalog's placeholders for one version.
func filler(version string) func(string) string {
	number := strings.TrimPrefix(version, "v")
	core, line := number, version
	if v, err := semver.NewVersion(version); err == nil {
		core, line = fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch()), lineOf(v)
	}
	return strings.NewReplacer("{version}", version, "{number}", number, "{core}", core, "{line}", line).Replace
}

// lineOf returns a version's release line, vMAJOR.MINOR.
func lineOf(v *semver.Version) string { return fmt.Sprintf("v%d.%d", v.Major(), v.Minor()) }

// titles returns a name in its usual capitalization.
func titles(name string) string {
	if name == kubernetes {
		return "Kubernetes"
	}
	return name
}
