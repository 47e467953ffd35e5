package precheck

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// supportChecks check the limits of this version of kkbundle.
func supportChecks() []Check {
	return []Check{{
		ID: "supported", Groups: []string{GroupKKBundle}, Level: Block,
		Title: "this version of kkbundle can install this cluster", Rule: canInstall, OfCluster: true,
		LevelOf: warnUnlessInstall, Varies: "warns unless a bundle is given to install from",
		Why:    "kkbundle install refuses such a cluster before it begins",
		Fix:    "change the listed settings, or install with something else and only use the bundle",
		Source: "kkbundle install",
	}}
}

// settingChecks check the inventory's settings of the cluster.
func settingChecks() []Check {
	return []Check{{
		ID: "host-settings", Groups: []string{GroupKKBundle}, Level: Block,
		Title: "the inventory's settings for the host fit the cluster", Rule: fitsCluster,
		Why:    "the host could not be set up so; the other checks look at it as if the inventory had none for it",
		Fix:    "change the listed settings, under cluster in vars, groupVars or the host's entry of the inventory",
		Source: "kkbundle: the cluster file with the changes by vars, groupVars and the host's entry",
	}}
}

func fitsCluster(s *Subject) Finding {
	switch {
	case s.Misfit != nil:
		return fail(strings.ReplaceAll(s.Misfit.Error(), "\n", "; "))
	case s.Cluster == s.fleet.cluster:
		return skip() // it has none
	default:
		return pass("they do")
	}
}

// bundleChecks check the bundle.
func bundleChecks() []Check {
	return []Check{{
		ID: "bundle", Groups: []string{GroupKKBundle}, Level: Block,
		Title: "the bundle has everything that this cluster needs on these hosts", Rule: hasAllContent, OfCluster: true,
		Why:     "missing items cannot be obtained at the site",
		Fix:     "build the bundle again with this cluster file",
		Source:  "kkbundle: the needs of the installation's tasks; kubeadm ImagePull",
		Kubeadm: []string{"ImagePull"},
	}}
}

// versionChecks check the version of Kubernetes.
func versionChecks() []Check {
	return []Check{
		{
			ID: "kubernetes-version", Groups: []string{GroupKubernetes}, Level: Block,
			Title: "this Kubernetes is not too old", Rule: isNotTooOld, OfCluster: true,
			Why:    "this version of kkbundle cannot configure it",
			Fix:    "choose a newer kubernetes.version in the cluster file",
			Source: "KubeKey v4 kubernetes_precheck (v1.23.0)",
		},
		{
			ID: "kubernetes-tested", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "this kkbundle knows this Kubernetes", Rule: isKnownVersion, OfCluster: true,
			LevelOf: knownLevel, Varies: "blocks for a newer minor release, unless the bundle was built with --assume",
			Why:     "which components go with it is guessed from the nearest version, and install refuses a newer minor release",
			Fix:     "choose a version in between, or a newer kkbundle, or build the bundle with --assume",
			Source:  "kkbundle's catalog; kubeadm KubernetesVersion",
			Kubeadm: []string{"KubernetesVersion"},
		},
		{
			ID: "versions", Groups: []string{GroupKubernetes}, Level: Block,
			Title: "the versions of the components go together", Rule: fitTogether, OfCluster: true,
			Why:    "their makers do not support this combination, and some of them refuse to start in it",
			Fix:    "set the compatible versions listed here in the cluster file",
			Source: "kkbundle's catalog: the versions that each project tests; Kubernetes version skew policy",
		},
	}
}

// fitTogether reports incompatibilities known to the catalog.
func fitTogether(s *Subject) Finding {
	if v := s.Cluster.Kubernetes.Version; v == "" || isBefore(v, oldestKnown()...) {
		return skip() // the version is unknown, or the catalog does not know compatible ones
	}
	_, err := catalog.Check(s.Input.Cluster)
	var problems document.Problems
	if err != nil && !errors.As(err, &problems) {
		return unknown(err.Error())
	}
	var wrong []string
	for _, p := range problems {
		if !s.saidElsewhere(p) {
			wrong = append(wrong, p.String())
		}
	}
	if len(wrong) > 0 {
		return fail(strings.Join(wrong, "; "))
	}
	return pass("they do")
}

// saidElsewhere reports whether a check of containerd or etcd alone already reports a problem.
func (s *Subject) saidElsewhere(p document.Problem) bool {
	_, text, _ := strings.Cut(p.Message, ": ")
	switch name, _, _ := strings.Cut(text, " "); name {
	case "containerd":
		return isNewContainerd(s).State == Failed
	case "etcd":
		return isNewEtcd(s).State == Failed
	case "this": // kkbundle does not know the release
		return isKnownVersion(s).State == Failed
	default:
		return false
	}
}

func canInstall(s *Subject) Finding {
	if s.Cluster.Kubernetes.Version == "" {
		return skip() // the version is unknown
	}
	errs := []error{s.Input.Cluster.CheckInstall()}
	if s.Input.Inventory != nil {
		errs = append(errs, s.Input.Inventory.CheckInstall())
	}
	if err := errors.Join(errs...); err != nil {
		return fail(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return pass("it can")
}

func hasAllContent(s *Subject) Finding {
	if !s.Input.Install {
		return skip()
	}
	if missing := s.Input.Missing; len(missing) > 0 {
		const most = 5
		if more := len(missing) - most; more > 0 {
			missing = append(slices.Clone(missing[:most]), fmt.Sprintf("and %d more", more))
		}
		return fail(strings.Join(missing, "; "))
	}
	return pass("it has")
}

func isNotTooOld(s *Subject) Finding {
	switch v := s.Cluster.Kubernetes.Version; {
	case v == "":
		return skip()
	case isBefore(v, 1, 23):
		return fail(v)
	default:
		return pass(v)
	}
}

// isKnownVersion compares minor versions only.
func isKnownVersion(s *Subject) Finding {
	v := s.Cluster.Kubernetes.Version
	newest, err := catalog.Newest()
	const parts = 2
	have, last := numbers(v), numbers(newest)
	switch {
	case err != nil || len(have) < parts || len(last) < parts:
		return skip()
	case isBefore(v, oldestKnown()...):
		return failf("%s, the oldest that it knows is 1.30", v)
	case slices.Compare(have[:parts], last[:parts]) > 0:
		return failf("%s, the newest that it knows is %s", v, newest)
	default:
		return pass(v)
	}
}

// knownLevel blocks releases that install refuses.
func knownLevel(s *Subject) Level {
	if s.Input.Cluster != nil && catalog.IsRefused(s.Input.Cluster) {
		return Block
	}
	return Warn
}

// oldestKnown returns the first minor version in the catalog's tables.
func oldestKnown() []int { return []int{1, 30} }
