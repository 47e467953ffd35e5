package precheck

import (
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// kubeletChecks check an existing kubelet.
func kubeletChecks() []Check {
	return []Check{
		{
			ID: "kubernetes-installed", Groups: []string{GroupKubernetes}, Level: Block,
			Title: "the installed Kubernetes has the cluster's version", Rule: isSameKubernetes, Roles: cluster(),
			LevelOf: installedLevel,
			Varies:  "warns about a kubelet that kkbundle has not installed and that does not run",
			Why:     "install does not replace a running node, and another kubelet's files get in its way",
			Fix:     "give the version that is installed, run kkbundle upgrade, or remove that kubelet (its package, or kubeadm reset)",
			Source:  "KubeKey v4 kubernetes_precheck",
		},
		{
			ID: "kubelet-version", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "the installed kubelet goes with the cluster's version", Rule: isFittingKubelet, Roles: cluster(),
			Why:     "kubeadm refuses to start: a kubelet may be up to three minor versions older than the cluster, and not newer",
			Fix:     "install the kubelet of the cluster's version; an installation by kkbundle brings its own",
			Source:  "kubeadm KubeletVersion",
			Kubeadm: []string{"KubeletVersion"},
		},
		{
			ID: "kubelet-service", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "the installed kubelet is a service", Rule: isService, Roles: cluster(),
			Why:     "kubeadm starts it by its unit, and nobody else starts it at the next boot",
			Fix:     "install the kubelet from its package, which brings kubelet.service",
			Source:  "kubeadm Service-Kubelet",
			Kubeadm: []string{"Service-Kubelet"},
		},
		{
			ID: "certificates", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "the cluster's certificates are valid for 30 days and more", Rule: hasLastingCertificates,
			Roles:  cluster(),
			Why:    "when they expire, parts of the cluster no longer talk to each other",
			Fix:    "kubeadm certs renew all on each control plane, and restart its static pods",
			Source: "kubeadm certs check-expiration",
		},
	}
}

// isSameKubernetes ignores a foreign kubelet, which leftovers reports.
func isSameKubernetes(s *Subject) Finding {
	unit, have, want := s.Facts.Unit("kubelet.service"), versionOf(s.Facts, "kubelet"), s.Cluster.Kubernetes.Version
	switch {
	case !s.Input.Install && !s.Ours(), unit.Load != "loaded":
		return skip()
	case s.Ours() && (unit.Active != "active" || want == ""):
		return skip() // the next run installs the right one
	case s.Ours() && s.Input.Upgrade:
		return pass(have + ", which is upgraded")
	case s.Ours() && have == "":
		return unknown("the kubelet does not say its version")
	case s.Ours() && have != want:
		return failf("%s runs, the cluster has %s", have, want)
	case s.Ours():
		return pass(have)
	case unit.Active == "active" || unit.Active == "activating":
		return skip()
	default:
		return fail(withVersion(s.Facts, "kubelet") + " is installed and does not run")
	}
}

func installedLevel(s *Subject) Level {
	if s.Ours() {
		return Block
	}
	return Warn
}

func isFittingKubelet(s *Subject) Finding {
	have, want := numbers(versionOf(s.Facts, "kubelet")), numbers(s.Cluster.Kubernetes.Version)
	const parts, older = 2, 3
	if s.Input.Install || s.Ours() || len(have) < parts || len(want) < parts {
		return skip()
	}
	text := withVersion(s.Facts, "kubelet")
	if have[0] != want[0] || have[1] > want[1] || have[1] < want[1]-older {
		return failf("%s, the cluster has %s", text, s.Cluster.Kubernetes.Version)
	}
	return pass(text)
}

func isService(s *Subject) Finding {
	if s.Input.Install || versionOf(s.Facts, "kubelet") == "" {
		return skip()
	}
	switch load := s.Facts.Unit("kubelet.service").Load; load {
	case "":
		return unknown("systemd gives no information about kubelet.service")
	case "loaded":
		return pass("it is")
	default:
		return fail("kubelet.service: " + load)
	}
}

// hasLastingCertificates uses the host's own clock.
func hasLastingCertificates(s *Subject) Finding {
	now := time.Unix(0, s.Facts.Clock)
	var wrong []string
	valid := 0
	for _, c := range s.Facts.Certificates {
		days := int(c.NotAfter.Sub(now).Hours() / 24)
		switch {
		case c.NotAfter.IsZero():
		case c.NotAfter.Before(now):
			wrong = append(wrong, c.Path+" has expired")
		case days < certificateDays:
			wrong = append(wrong, fmt.Sprintf("%s expires in %s", c.Path, plain.Count(days, "day")))
		default:
			valid++
		}
	}
	switch {
	case len(wrong) > 0:
		return fail(some(wrong))
	case valid == 0:
		return skip() // there is no cluster yet
	default:
		return pass(plain.Count(valid, "certificate"))
	}
}
