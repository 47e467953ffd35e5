package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Check finds incompatible versions before anything is fetched or a host is changed: of Kubernetes, the runtime, the
// network, etcd and every component whose version the cluster sets. The error lists all of them as Problems, each with
// compatible versions. Notes list versions unknown to the catalog, which are not refused.
func Check(c *manifest.Cluster) (notes []string, err error) {
	r, err := newResolver(c)
	if err != nil {
		return nil, err
	}
	return r.check(nil)
}

// check is Check for the components of demands, too: that the catalog knows versions of them.
func (r resolver) check(demands []manifest.Demand) (notes []string, err error) {
	c := r.cluster
	k := checker{resolver: r}
	k.overrides()
	k.distribution()
	release, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil {
		return nil, c.Problem("kubernetes.version", err.Error())
	}
	used := k.inUse()
	for _, name := range used {
		k.check(name, release)
	}
	for _, d := range demands {
		used = append(used, d.Name)
	}
	k.tooOld(used)
	k.unknown()
	k.gates(release)
	k.arguments(release)
	return k.notes, k.found.Err()
}

// checker collects incompatibilities.
type checker struct {
	resolver
	notes []string
	found document.Problems
}

func (k *checker) problem(path, format string, args ...any) {
	var one document.Problems
	errors.As(k.cluster.Problem(path, fmt.Sprintf(format, args...)), &one)
	k.found = append(k.found, one...)
}

// unknown refuses a minor release that nobody has checked, unless --assume accepted it: configuration changes with
// minor releases. Of patch releases build asks kubeadm itself.
func (k *checker) unknown() {
	known := newestOf(k.Releases)
	if known == nil || !IsUnknown(k.cluster) {
		return
	}
	version := k.cluster.Kubernetes.Version
	if !k.Kubeadm[version].Assumed {
		k.problem("kubernetes.version",
			"this kkbundle knows no release as new as Kubernetes %s, the newest that it knows is v%s; use a newer kkbundle, or build with --assume, which takes what it knows of v%s and asks kubeadm for its images",
			version, known, known)
		return
	}
	k.notes = append(k.notes,
		fmt.Sprintf("Kubernetes %s is newer than v%s, the newest that this catalog was checked against: the versions of %s are taken to be those for v%s",
			version, known, k.guessed(), known))
}

// tooOld refuses a release that is older than the first that the catalog knows versions of these components for, in
// one line.
func (k *checker) tooOld(components []string) {
	found := map[tooOld][]string{}
	for _, name := range components {
		_, err := k.version(name)
		if old, ok := errors.AsType[*tooOldError](err); ok && !slices.Contains(found[old.tooOld], old.component) {
			found[old.tooOld] = append(found[old.tooOld], old.component)
		}
	}
	for cause, names := range found {
		slices.Sort(names)
		what := "component"
		if len(names) > 1 {
			what = "components"
		}
		at := "kubernetes.version"
		if cause.leader == clusterAPI && k.cluster.ClusterAPI.Installed() {
			at = "clusterAPI.version"
		}
		k.problem(at,
			"%s %s: no version is known that goes with %s %s; the first known is for %s; take a later release, or name one in the cluster file under components.%s.version",
			what, strings.Join(names, ", "), cause.leader, cause.release, cause.first, names[0])
	}
}

// gates refuses feature gates that a release no longer has: the program that gets one does not start.
func (k *checker) gates(release *semver.Version) {
	removed := removedBefore(release, k.RemovedGates)
	for _, g := range k.cluster.Kubernetes.FeatureGates() {
		if since := removed[g.Name]; since != "" {
			k.problem(g.Path, "Kubernetes has no feature gate %s since %s, and %s does not start with it; leave it out",
				g.Name, since, g.Program)
		}
	}
}

// arguments refuses arguments that a release no longer takes, or words of their lists: the program does not start.
func (k *checker) arguments(release *semver.Version) {
	removed := removedBefore(release, k.RemovedArguments)
	for _, a := range k.cluster.Kubernetes.Arguments() {
		if since := removed[a.Program+" --"+a.Name]; since != "" {
			k.problem(a.Path, "%s has no --%s since %s, and does not start with it; leave it out", a.Program, a.Name,
				since)
		}
		for word := range strings.SplitSeq(a.Value, ",") {
			if since := removed[a.Program+" --"+a.Name+"="+word]; since != "" {
				k.problem(a.Path, "%s has no %s for --%s since %s, and does not start with it; leave it out",
					a.Program, word, a.Name, since)
			}
		}
	}
}

// removedBefore returns what a release no longer has, with the minor release that removed it.
func removedBefore(release *semver.Version, by map[string][]string) map[string]string {
	removed := map[string]string{}
	for minor, names := range by {
		since, err := semver.NewVersion(minor)
		for _, name := range names {
			if err == nil && !core(release).LessThan(since) {
				removed[name] = minor
			}
		}
	}
	return removed
}

// overrides refuses entries under components that have no effect.
func (k *checker) overrides() {
	for _, name := range slices.Sorted(maps.Keys(k.cluster.Components)) {
		if _, err := k.component(name); err != nil {
			k.problem("components["+name+"]", "%v", err)
		}
	}
}

// distribution compares the form of the version with the distribution to install.
func (k *checker) distribution() {
	for path, version := range map[string]string{
		"kubernetes.version":     k.cluster.Kubernetes.Version,
		"kubernetes.upgradeFrom": k.cluster.Kubernetes.UpgradeFrom,
	} {
		core, build, _ := strings.Cut(version, "+")
		isK3s := strings.HasPrefix(build, "k3s")
		switch wantK3s := k.cluster.Kubernetes.Distribution == manifest.DistributionK3s; {
		case version == "":
		case wantK3s && !isK3s:
			k.problem(path, "%s is not a release of k3s; write the release of k3s too, as in %s+k3s1", version, core)
		case !wantK3s && build != "":
			k.problem(path, "%s is not a release of Kubernetes; write %s, or distribution: k3s", version, core)
		}
	}
}

// inUse returns the components whose version is compared with that of Kubernetes.
func (k *checker) inUse() []string {
	c := k.cluster.WithDefaults()
	list := []string{string(c.CNI.Type), string(c.CNI.With)}
	if c.Kubernetes.Distribution == manifest.DistributionKubernetes {
		list = append(list, "kubeadm", "kubelet", "kubectl", string(c.CRI.Type))
		if c.Etcd.Type != manifest.EtcdProvided {
			list = append(list, "etcd")
		}
	}
	if c.ClusterAPI.Installed() {
		list = append(list, clusterAPI)
	}
	list = slices.AppendSeq(list, maps.Keys(c.Components))
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list),
		func(name string) bool { _, there := k.Components[name]; return !there })
}

// check compares one component's version with Kubernetes.
func (k *checker) check(name string, release *semver.Version) {
	one := k.Components[name]
	text, err := k.version(name)
	if _, old := errors.AsType[*tooOldError](err); old {
		return // for tooOld
	}
	if err != nil {
		k.problem("kubernetes.version", "%v", err)
		return
	}
	_, path := k.chosen(name)
	v, err := semver.NewVersion(text)
	if err != nil {
		return // another version scheme, such as haproxy's tag
	}
	usual, err := k.usual(name, one)
	if err == nil && path != "" && strings.HasPrefix(usual, "v") && !strings.HasPrefix(text, "v") {
		k.problem(path, "write v%s", text)
		return
	}
	if name == "etcd" && path != "" && v.Prerelease() == "" &&
		k.cluster.WithDefaults().Etcd.Type == manifest.EtcdInternal {
		k.problem(path, "%s is not a tag of etcd's image; write one such as %s-0", text, strings.TrimPrefix(text, "v"))
	}
	k.skew(name, v, path, release)
	if k.fit(name, v, path, release) {
		k.minimum(name, v, path, release)
	}
}

// instead returns the compatible versions, for the end of a sentence.
func (k *checker) instead(name string) string {
	usual, err := k.usual(name, k.Components[name])
	if err != nil {
		return ""
	}
	return "; take " + usual
}

// where returns the path of a version, or that of Kubernetes if the catalog chose it.
func where(path string) string {
	if path == "" {
		return "kubernetes.version"
	}
	return path
}

// skew compares minor releases.
func (k *checker) skew(name string, v *semver.Version, path string, release *semver.Version) {
	s := k.Components[name].Skew
	if s == nil || path == "" {
		return
	}
	minor, own := int(release.Minor()), int(v.Minor()) //nolint:gosec // minor releases are small
	if v.Major() == release.Major() && own >= minor-s.Older && own <= minor+s.Newer {
		return
	}
	allowed := fmt.Sprintf("has to be v%d.%d", release.Major(), minor)
	if s.Older+s.Newer > 0 {
		allowed = fmt.Sprintf("has to be from v%d.%d to v%d.%d", release.Major(), minor-s.Older, release.Major(),
			minor+s.Newer)
	}
	k.problem(path, "%s v%s does not go with Kubernetes v%s: its minor release %s%s", name, v, release, allowed,
		k.instead(name))
}

// minimum compares with the oldest version compatible with Kubernetes. The part after a hyphen is ignored: etcd's
// images have revisions there, which are later and not earlier than the release.
func (k *checker) minimum(name string, v *semver.Version, path string, release *semver.Version) {
	least, err := semver.NewVersion(lookup(k.Components[name].Minimum, release))
	if err != nil || !core(v).LessThan(core(least)) {
		return
	}
	k.problem(where(path), "%s %s is too old for Kubernetes v%s, which needs %s or newer%s", name, v.Original(),
		release, least.Original(), k.instead(name))
}

func core(v *semver.Version) *semver.Version {
	return semver.New(v.Major(), v.Minor(), v.Patch(), "", "")
}

// fit compares a release line with its supported releases of Kubernetes, and reports whether it may be used. Unknown
// lines are not refused, and neither is the catalog's own choice.
func (k *checker) fit(name string, v *semver.Version, path string, release *semver.Version) bool {
	all := k.Components[name].Fits
	i := slices.IndexFunc(all, func(f catalogfile.Fit) bool { return f.Line == lineOf(v) })
	if i < 0 || holds(all[i], release) {
		return true
	}
	usual, err := k.usual(name, k.Components[name])
	if u, bad := semver.NewVersion(usual); err == nil && bad == nil && lineOf(u) == lineOf(v) {
		k.notes = append(k.notes,
			fmt.Sprintf("%s %s is known to go with Kubernetes %s; whether it does with v%s is not known here", name,
				v.Original(), span(all[i]), release))
		return true
	}
	k.problem(where(path), "%s %s does not go with Kubernetes v%s: it is for %s%s", name, v.Original(), release,
		span(all[i]), k.instead(name))
	return false
}

func holds(f catalogfile.Fit, release *semver.Version) bool {
	from, err := semver.NewVersion(f.From)
	line := semver.New(release.Major(), release.Minor(), 0, "", "")
	if err != nil || line.LessThan(from) {
		return false
	}
	to, err := semver.NewVersion(f.To)
	return err != nil || !line.GreaterThan(to)
}

func span(f catalogfile.Fit) string {
	if f.To == "" {
		return f.From + " and newer"
	}
	return f.From + " to " + f.To
}

// guessed names the values read from a table by release of Kubernetes, without those that build asks kubeadm for.
func (k *checker) guessed() string {
	var list []string
	for _, name := range k.inUse() {
		one := k.Components[name]
		version, path := k.chosen(name)
		if leaderOf(one) == kubernetes && len(one.Since) > 0 && version == "" && path == "" &&
			!isListed(k.cluster, name) {
			list = append(list, name)
		}
	}
	return strings.Join(list, ", ")
}

// isListed reports whether kubeadm lists the image of a component.
func isListed(c *manifest.Cluster, name string) bool {
	return c.Kubernetes.Distribution != manifest.DistributionK3s &&
		slices.Contains(catalogfile.KubeadmComponents(), name)
}

// IsUnknown reports whether the cluster's Kubernetes is of a newer minor release than the catalog knows. k3s brings
// what it needs of every release.
func IsUnknown(c *manifest.Cluster) bool {
	r, err := newResolver(c)
	if err != nil || c.Kubernetes.Distribution == manifest.DistributionK3s {
		return false
	}
	release, err := semver.NewVersion(c.Kubernetes.Version)
	newest := newestOf(r.Releases)
	return err == nil && newest != nil && release.GreaterThan(newest) && r.Releases[lineOf(release)] == ""
}

// IsRefused reports whether the cluster's Kubernetes is unknown and nobody accepted it with --assume.
func IsRefused(c *manifest.Cluster) bool {
	r, err := newResolver(c)
	return err == nil && IsUnknown(c) && !r.Kubeadm[c.Kubernetes.Version].Assumed
}

// IsExact reports whether the catalog knows the release of the cluster's Kubernetes itself, and not only older ones: it
// was checked against that or a newer patch release, or has all images of its kubeadm.
func IsExact(c *manifest.Cluster) (bool, error) {
	r, err := newResolver(c)
	if err != nil {
		return false, err
	}
	release, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil {
		return false, fmt.Errorf("kubernetes.version %q: %w", c.Kubernetes.Version, err)
	}
	listed := r.Kubeadm[c.Kubernetes.Version]
	if !slices.ContainsFunc(catalogfile.KubeadmComponents(), func(name string) bool { return listed.Tag(name) == "" }) {
		return true, nil
	}
	known, err := semver.NewVersion(r.Releases[lineOf(release)])
	return err == nil && !release.GreaterThan(known), nil //nolint:nilerr // a minor release without an entry is unknown
}
