package precheck

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// latencyID is the check that requires the disk measurement, which takes seconds.
const latencyID = "etcd-latency"

// etcdChecks check the cluster's own etcd.
func etcdChecks() []Check {
	return []Check{
		{
			ID: latencyID, Groups: []string{GroupEtcd}, Level: Warn,
			Title: "the disk has a small write for good soon enough for etcd", Rule: isFastEnough,
			Why:    "etcd loses its leader when writes to its log take long, and the API server stops answering",
			Fix:    "give etcd's directory an SSD of its own; precheck.diskLatency in the cluster file sets another limit",
			Source: "etcd: 99% of WAL fsyncs below 10 ms; KubeKey v4 etcd_precheck (measured there in /tmp)",
		},
		{
			ID: "etcd-installed", Groups: []string{GroupEtcd}, Level: Block, Title: "no newer etcd is installed",
			Rule:   isNoDowngrade,
			Why:    "an older etcd does not start with the data of a newer one",
			Fix:    "set components.etcd in the cluster file to the installed version or a newer one, or remove the installed etcd and its data",
			Source: "KubeKey v4 etcd_precheck",
		},
	}
}

// isFastEnough checks fdatasync in etcd's own directory.
func isFastEnough(s *Subject) Finding {
	sync := s.Facts.Sync
	least := time.Duration(s.Cluster.Precheck.DiskLatency)
	switch {
	case !hasEtcd(s.Cluster, s.Host.Host):
		return skip()
	case sync == nil:
		return unknown("it was not measured")
	case sync.Writes == 0:
		return unknown("it could not be measured: " + sync.Problem)
	case sync.Type == "tmpfs":
		return failf("%s is in memory (tmpfs)", sync.In)
	}
	p99 := time.Duration(sync.P99)
	text := fmt.Sprintf("99%% of %d writes in %s took up to %s", sync.Writes, sync.In, p99.Round(10*time.Microsecond))
	if p99 > least {
		return failf("%s, the limit is %s", text, least)
	}
	return pass(text)
}

func isNoDowngrade(s *Subject) Finding {
	if s.Cluster.Kubernetes.Version == "" || s.Cluster.Etcd.Type != manifest.EtcdExternal ||
		!s.Host.Is(manifest.RoleEtcd) || s.Facts.Unit("etcd.service").Load != "loaded" {
		return skip()
	}
	want, err := catalog.Version(s.Cluster, "etcd")
	have := versionOf(s.Facts, "etcd")
	switch {
	case err != nil || want == "":
		return unknown("it is not known which etcd goes with this Kubernetes")
	case have == "":
		return unknown("the installed etcd does not say its version")
	case slices.Compare(numbers(want), numbers(have)) < 0:
		return failf("%s is installed, the cluster has %s", have, want)
	default:
		return pass(have + " is installed")
	}
}

// etcdFloor returns the oldest etcd that a Kubernetes supports, by kubeadm's MinExternalEtcdVersion and KubeKey's
// table; each rule applies from its Kubernetes on.
func etcdFloor(kubernetes string) string {
	floor := ""
	for _, one := range []struct {
		since []int
		least string
	}{
		{[]int{1, 23}, "3.2.18"},
		{[]int{1, 28}, "3.4.13"},
		{[]int{1, 31}, "3.5.11"},
		{[]int{1, 31, 14}, "3.5.24"},
		{[]int{1, 32}, "3.5.11"},
		{[]int{1, 32, 10}, "3.5.24"},
		{[]int{1, 33}, "3.5.11"},
		{[]int{1, 33, 6}, "3.5.21"},
		{[]int{1, 34}, "3.5.21"},
		{[]int{1, 34, 2}, "3.5.24"},
	} {
		if !isBefore(kubernetes, one.since...) {
			floor = one.least
		}
	}
	return floor
}

// ProvidedEtcd is the user's own etcd, as seen from this machine. It excludes the client's key.
type ProvidedEtcd struct {
	// CA and Cert are PEM.
	CA, Cert []byte
	// Problem is the problem with the files: one cannot be read, or the key does not match the certificate.
	Problem string
	// Versions has each endpoint's version; nil if they were not asked.
	Versions []EtcdVersion
	// Now is the time of the check.
	Now time.Time
}

// EtcdVersion is the version of one endpoint.
type EtcdVersion struct {
	Endpoint string
	Version  string // such as 3.6.5
	Problem  string // reason that it is unknown
}

// providedEtcdChecks check the user's own etcd.
func providedEtcdChecks() []Check {
	return []Check{
		{
			ID: "etcd-certificates", Groups: []string{GroupEtcd}, Level: Block,
			Title: "the certificates for your etcd are valid", Rule: hasEtcdCertificates, OfCluster: true,
			Why:     "the API server could not connect to etcd, now or when they expire",
			Fix:     "give valid PEM files in etcd.ca, etcd.cert and etcd.key of the cluster file",
			Source:  "kubeadm ExternalEtcdClientCertificates, which only asks whether the files are there",
			Kubeadm: []string{"ExternalEtcdClientCertificates"},
		},
		{
			ID: "etcd-version", Groups: []string{GroupEtcd}, Level: Block,
			Title: "etcd is new enough for this Kubernetes", Rule: isNewEtcd, OfCluster: true,
			Why:     "the API server uses features that an older etcd does not have, and kubeadm refuses to start",
			Fix:     "update your etcd, or choose an older Kubernetes; of an etcd that kkbundle brings, take components.etcd out of the cluster file",
			Source:  "kubeadm ExternalEtcdVersion (3.5.24 for 1.34.3); KubeKey v4 etcd_precheck",
			Kubeadm: []string{"ExternalEtcdVersion"},
		},
		{
			ID: "etcd-reachable", Groups: []string{GroupEtcd, GroupNetwork}, Level: Block,
			Title: "control planes reach your etcd", Rule: reachesEtcd, Roles: controlPlane(),
			Why:    "the API server does not start without it",
			Fix:    "start it, open its port, or correct etcd.endpoints in the cluster file",
			Source: "kkbundle",
		},
	}
}

// certificateDays is the least remaining validity of certificates.
const certificateDays = 30

func hasEtcdCertificates(s *Subject) Finding {
	etcd := s.Input.Etcd
	switch {
	case s.Cluster.Etcd.Type != manifest.EtcdProvided:
		return skip()
	case etcd == nil:
		return unknown("nobody has looked at them")
	case etcd.Problem != "":
		return fail(etcd.Problem)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(etcd.CA) {
		return failf("%s has no certificate", s.Cluster.Etcd.CA)
	}
	block, rest := pem.Decode(etcd.Cert)
	if block == nil {
		return failf("%s has no certificate", s.Cluster.Etcd.Cert)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return failf("%s: %s", s.Cluster.Etcd.Cert, err)
	}
	between := x509.NewCertPool()
	between.AppendCertsFromPEM(rest)
	_, err = cert.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: etcd.Now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	days := int(cert.NotAfter.Sub(etcd.Now).Hours() / 24)
	switch {
	case err != nil:
		return failf("%s: %s", s.Cluster.Etcd.Cert, err)
	case days < certificateDays:
		return failf("%s expires in %s", s.Cluster.Etcd.Cert, plain.Count(days, "day"))
	default:
		return pass("valid until " + cert.NotAfter.UTC().Format(time.DateOnly))
	}
}

// isNewEtcd checks the version of the user's etcd, or the one in the cluster file.
func isNewEtcd(s *Subject) Finding {
	floor := etcdFloor(s.Cluster.Kubernetes.Version)
	if floor == "" || s.Cluster.Kubernetes.Version == "" {
		return skip()
	}
	if s.Cluster.Etcd.Type != manifest.EtcdProvided {
		version, err := catalog.Version(s.Cluster, "etcd")
		if err != nil || version == "" {
			return skip() // the cluster file does not set one
		}
		return isNewer(version, floor)
	}
	if s.Input.Etcd == nil || len(s.Input.Etcd.Versions) == 0 {
		return unknown("nobody has asked it")
	}
	var old, untold, good []string
	for _, v := range s.Input.Etcd.Versions {
		switch {
		case v.Version == "":
			untold = append(untold, v.Endpoint+": "+v.Problem)
		case isNewer(v.Version, floor).State == Failed:
			old = append(old, fmt.Sprintf("%s: %s, needed is %s", v.Endpoint, v.Version, floor))
		default:
			good = append(good, v.Endpoint+": "+v.Version)
		}
	}
	if len(old) == 0 && len(untold) > 0 {
		return unknown(some(untold))
	}
	return none(old, some(good))
}

// isNewer compares two versions.
func isNewer(have, least string) Finding {
	if slices.Compare(numbers(have), numbers(least)) < 0 {
		return failf("%s, needed is %s", have, least)
	}
	return pass(have)
}

// etcdAddresses returns the addresses that control planes dial.
func etcdAddresses(c *manifest.Cluster) []string {
	if c.Etcd.Type != manifest.EtcdProvided {
		return nil
	}
	var list []string
	for _, e := range c.Etcd.Endpoints {
		list = append(list, withPort(strings.TrimPrefix(e, "https://"), "2379"))
	}
	return list
}

func reachesEtcd(s *Subject) Finding { return s.reaches(etcdAddresses(s.Cluster)) }

// reaches checks that the host could connect to all of these addresses.
func (s *Subject) reaches(addresses []string) Finding {
	if len(addresses) == 0 {
		return skip()
	}
	var closed, untold []string
	for _, address := range addresses {
		d, tried := s.dialled(address)
		switch {
		case !tried:
			untold = append(untold, address+" was not tried")
		case !d.OK:
			closed = append(closed, address+": "+d.Problem)
		}
	}
	if len(closed) == 0 && len(untold) > 0 {
		return unknown(some(untold))
	}
	return none(closed, some(addresses))
}
