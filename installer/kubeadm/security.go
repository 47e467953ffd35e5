package kubeadm

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// docs/site/security.md lists the settings of each level and the benchmarks that require them.

const (
	securityDir = "/etc/kubernetes/security"
	auditDir    = "/var/log/kubernetes/audit"
	auditLog    = auditDir + "/audit.log"
	// EncryptionFile has the encryption key of Secrets in etcd, on control planes and in the work directory.
	EncryptionFile = "encryption.yaml"
	// EncryptionOnHost is EncryptionFile's path on control planes.
	EncryptionOnHost = securityDir + "/" + EncryptionFile
)

// Guarded reports whether the API servers have the security files: encryption of Secrets, audit log, Pod Security.
// Every new cluster has them. A cluster of level baseline that an earlier release made is left without, because other
// API servers could not read the Secrets that the first one encrypts.
func Guarded(ctx context.Context, r *task.Site) (bool, error) {
	if task.IsHardened(r.Cluster) {
		return true, nil
	}
	first := r.FirstControlPlane()
	_, _, exists, err := member.Recorded(ctx, first)
	if err != nil || !exists {
		return true, err
	}
	return first.Test(ctx, "test", "-e", EncryptionOnHost)
}

// securityPart returns the settings of the cluster's security level. Guarded API servers use the security files.
func securityPart(r *task.Site, guarded bool) task.KubeadmPart {
	flags := map[string]map[string]string{}
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		flags[name] = map[string]string{"profiling": "false", "tls-min-version": "VersionTLS12"}
	}
	part := task.KubeadmPart{Flags: flags, Kubelet: kube.Document{
		"tlsMinVersion": "VersionTLS12",
		"readOnlyPort":  0,
		"authentication": kube.Document{
			"anonymous": kube.Document{"enabled": false},
			"webhook":   kube.Document{"enabled": true},
		},
		"authorization": kube.Document{"mode": "Webhook"},
	}}
	if guarded {
		addGuard(r, &part)
	}
	if task.IsHardened(r.Cluster) {
		addHardened(r, &part)
	}
	return part
}

// addGuard makes the API server use the security files.
func addGuard(r *task.Site, part *task.KubeadmPart) {
	api := part.Flags[apiServer]
	api["admission-control-config-file"] = securityDir + "/admission.yaml"
	api["encryption-provider-config"] = EncryptionOnHost
	api["audit-policy-file"] = securityDir + "/audit-policy.yaml"
	api["audit-log-path"] = auditLog
	for name, most := range auditLimits(r.Cluster) {
		api[name] = strconv.Itoa(most)
	}
	part.Volumes = map[string][]task.HostVolume{apiServer: {
		{Name: "kkbundle-security", Path: securityDir, Kind: "Directory"},
		{Name: "kkbundle-audit", Path: auditDir, Kind: "DirectoryOrCreate", Writable: true},
	}}
}

// addHardened adds the settings of the level hardened.
func addHardened(r *task.Site, part *task.KubeadmPart) {
	suites := strings.Join(cipherSuites(), ",")
	for _, flags := range part.Flags {
		flags["tls-cipher-suites"] = suites
	}
	for _, name := range []string{controllerManager, scheduler} {
		part.Flags[name]["bind-address"] = "127.0.0.1"
		if !r.Has4() {
			part.Flags[name]["bind-address"] = "::1"
		}
	}
	api := part.Flags[apiServer]
	api["enable-admission-plugins"] = "NodeRestriction"
	if limitsAnonymous(r) {
		api["authentication-config"] = securityDir + "/authentication.yaml"
	}
	if r.Cluster.Etcd.Type == manifest.EtcdInternal {
		part.Cluster = kube.Document{"etcd": kube.Document{"local": kube.Document{"extraArgs": kube.Document{"cipher-suites": suites, "tls-min-version": "TLS1.2"}}}}
	}
	var list []any
	for _, suite := range cipherSuites() {
		list = append(list, suite)
	}
	part.Kubelet["tlsCipherSuites"] = list
	part.Kubelet["protectKernelDefaults"] = true
	part.Kubelet["seccompDefault"] = true
	part.Kubelet["streamingConnectionIdleTimeout"] = "5m0s"
	part.Kubelet["podPidsLimit"] = podProcesses
	part.Kubelet["enableProfilingHandler"] = false
}

// podProcesses limits the processes of a pod: far more than services start, far less than a fork bomb.
const podProcesses = 4096

// auditLimits bounds the audit log: about 1 GB at level hardened (CIS 1.2.17 to 1.2.19), 300 MB at baseline.
func auditLimits(c *manifest.Cluster) map[string]int {
	if task.IsHardened(c) {
		return map[string]int{"audit-log-maxage": 30, "audit-log-maxbackup": 10, "audit-log-maxsize": 100}
	}
	return map[string]int{"audit-log-maxage": 30, "audit-log-maxbackup": 5, "audit-log-maxsize": 50}
}

// cipherSuites returns the suites of TLS 1.2 with forward secrecy and authenticated encryption; all of TLS 1.3 have it.
func cipherSuites() []string {
	return []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	}
}

// limitsAnonymous reports whether the API server limits anonymous access by path: since 1.32, if no flag conflicts.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#anonymous-requests
func limitsAnonymous(r *task.Site) bool {
	if isOlder(r, 1, 32) {
		return false
	}
	component, _ := r.Cluster.Kubernetes.Kubeadm[apiServer].(map[string]any)
	return !slices.ContainsFunc(argsOf(component["extraArgs"]), func(a argument) bool {
		return a.name == "anonymous-auth" || a.name == "authentication-config" || strings.HasPrefix(a.name, "oidc-")
	})
}

// isOlder reports whether the cluster's Kubernetes is older than a minor release.
func isOlder(r *task.Site, major, minor uint64) bool {
	v, err := semver.NewVersion(r.Cluster.Kubernetes.Version)
	return err == nil && v.LessThan(semver.New(major, minor, 0, "", ""))
}

// SecurityTasks returns the task that writes the API server's security files before kubeadm starts it.
func SecurityTasks() []task.Task {
	step := securityTask(func(ctx context.Context, t *task.Host) (task.Setting, error) {
		encryption, err := Encryption(ctx, t.Site)
		if err != nil {
			return task.Setting{}, err
		}
		return securitySetting(t, encryption)
	})
	settled := step.Done
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		if guarded, err := Guarded(ctx, t.Site); err != nil || !guarded {
			return true, err
		}
		return settled(ctx, t)
	}
	return []task.Task{step}
}

// securityTask writes a setting on the control planes, one after the other.
func securityTask(want func(ctx context.Context, t *task.Host) (task.Setting, error)) task.Task {
	return task.Settle(task.Task{
		Name: "security", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.OneByOne,
		Leaves: task.Leaves{Paths: []string{auditDir}},
	}, want)
}

// securitySetting returns the security files with an EncryptionConfiguration. A running API server is restarted when
// they change.
func securitySetting(t *task.Host, encryption []byte) (task.Setting, error) {
	c := t.Site.Cluster
	files := []task.File{{Path: EncryptionOnHost, Mode: 0o600, Data: encryption}}
	wanted := map[string]kube.Document{
		"admission.yaml":    AdmissionConfig(c.Kubernetes.Security),
		"audit-policy.yaml": AuditPolicy(c.Kubernetes.Security),
	}
	if task.IsHardened(c) && limitsAnonymous(t.Site) {
		wanted["authentication.yaml"] = AuthenticationConfig(isOlder(t.Site, 1, 34))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		data, err := kube.Documents(wanted[name])
		if err != nil {
			return task.Setting{}, err
		}
		files = append(files, task.File{Path: securityDir + "/" + name, Mode: 0o600, Data: data})
	}
	return task.Setting{Files: files, Apply: restartAPIServer}, nil
}

// needSecurityFiles returns an error if the host lacks the files that the API server reads: its pod would never start.
func needSecurityFiles(ctx context.Context, t *task.Host) error {
	guarded, err := Guarded(ctx, t.Site)
	if err != nil || !guarded {
		return err
	}
	there, err := t.Test(ctx, "test", "-e", EncryptionOnHost)
	if err == nil && !there {
		err = fmt.Errorf("the API server's files in %s do not exist; run kkbundle install with the tag security too",
			securityDir)
	}
	return err
}

// restartAPIServer restarts a running API server, so that it reads its files again.
func restartAPIServer(ctx context.Context, t *task.Host) error {
	if member, err := member.IsMember(ctx, t); err != nil || !member {
		return err
	}
	return restartStatic(ctx, t, "kube-apiserver")
}

// Encryption returns the EncryptionConfiguration of all control planes, created once. The first control plane's file
// overrides the copy in the work directory: Secrets need its keys, and an operator may have changed them there.
func Encryption(ctx context.Context, r *task.Site) ([]byte, error) {
	r.Dir.Making.Lock()
	defer r.Dir.Making.Unlock()
	kept, err := r.Dir.Read(EncryptionFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	there, err := r.FirstControlPlane().Read(ctx, EncryptionOnHost)
	switch {
	case err == nil:
		kept = there
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case kept == nil:
		if kept, err = newEncryption(); err != nil {
			return nil, err
		}
	}
	if err := hideKeys(r, kept); err != nil {
		return nil, err
	}
	return kept, r.Dir.Write(EncryptionFile, kept)
}

// hideKeys keeps the keys of an EncryptionConfiguration out of the log.
func hideKeys(r *task.Site, data []byte) error {
	var config struct {
		Resources []struct {
			Providers []map[string]struct {
				Keys []struct {
					Secret string `json:"secret"`
				} `json:"keys"`
			} `json:"providers"`
		} `json:"resources"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("%s is not an EncryptionConfiguration: %w", EncryptionOnHost, err)
	}
	for _, resource := range config.Resources {
		for _, provider := range resource.Providers {
			for _, kind := range provider {
				for _, key := range kind.Keys {
					r.Mask.Hide(key.Secret)
				}
			}
		}
	}
	return nil
}

// newEncryption returns a configuration with a new key. Older, unencrypted Secrets stay readable (identity).
// https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/
func newEncryption() ([]byte, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails: https://pkg.go.dev/crypto/rand#Read
	return kube.Documents(kube.Document{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "EncryptionConfiguration",
		"resources": []any{kube.Document{
			"resources": []any{"secrets"},
			"providers": []any{
				kube.Document{"secretbox": kube.Document{"keys": []any{kube.Document{
					"name":   "kkbundle1",
					"secret": base64.StdEncoding.EncodeToString(key),
				}}}},
				kube.Document{"identity": kube.Document{}},
			},
		}},
	})
}

// AuthenticationConfig allows anonymous access to health checks and to cluster-info, which joining nodes read.
func AuthenticationConfig(beta bool) kube.Document {
	version := "apiserver.config.k8s.io/v1"
	if beta {
		version += "beta1"
	}
	var open []any
	for _, path := range []string{
		"/livez", "/readyz", "/healthz",
		"/api/v1/namespaces/kube-public/configmaps/cluster-info",
	} {
		open = append(open, kube.Document{"path": path})
	}
	return kube.Document{
		"apiVersion": version,
		"kind":       "AuthenticationConfiguration",
		"anonymous":  kube.Document{"enabled": true, "conditions": open},
	}
}

// AdmissionConfig returns the defaults of Pod Security. Level hardened enforces the standard baseline and warns about
// restricted; level baseline only warns, about the standard baseline. Namespaces can change that by labels; kube-system
// is exempt.
// https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/
func AdmissionConfig(level manifest.SecurityLevel) kube.Document {
	enforce, warn := "privileged", "baseline"
	if level == manifest.SecurityHardened {
		enforce, warn = "baseline", "restricted"
	}
	return kube.Document{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "AdmissionConfiguration",
		"plugins": []any{kube.Document{
			"name": "PodSecurity",
			"configuration": kube.Document{
				"apiVersion": "pod-security.admission.config.k8s.io/v1",
				"kind":       "PodSecurityConfiguration",
				"defaults": kube.Document{
					"enforce": enforce, "enforce-version": "latest",
					"audit": warn, "audit-version": "latest",
					"warn": warn, "warn-version": "latest",
				},
				"exemptions": kube.Document{
					"namespaces": []any{"kube-system"}, "usernames": []any{},
					"runtimeClasses": []any{},
				},
			},
		}},
	}
}

// AuditPolicy logs requests with their user, and omits routine reads of cluster components. Level hardened includes the
// bodies of changes to workloads and permissions, never of Secrets. Level baseline has no bodies, and reads of Secrets
// only.
// https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
func AuditPolicy(level manifest.SecurityLevel) kube.Document {
	secret := []any{
		kube.Document{"group": "", "resources": []any{"secrets", "configmaps", "serviceaccounts/token"}},
		kube.Document{"group": "authentication.k8s.io", "resources": []any{"tokenreviews"}},
	}
	rules := append(unauditedRules(), kube.Document{"level": "Metadata", "resources": secret})
	if level == manifest.SecurityHardened {
		rules = append(rules,
			kube.Document{"level": "Metadata", "verbs": []any{"get", "list", "watch"}},
			kube.Document{"level": "Request", "resources": []any{
				kube.Document{"group": ""},
				kube.Document{"group": "apps"},
				kube.Document{"group": "batch"},
				kube.Document{"group": "rbac.authorization.k8s.io"},
				kube.Document{"group": "networking.k8s.io"},
				kube.Document{"group": "policy"},
				kube.Document{"group": "admissionregistration.k8s.io"},
			}})
	} else {
		rules = append(rules, kube.Document{"level": "None", "verbs": []any{"get", "list", "watch"}})
	}
	return kube.Document{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		"omitStages": []any{"RequestReceived"},
		"rules":      append(rules, kube.Document{"level": "Metadata"}),
	}
}

// unauditedRules omit the requests that cluster components repeat all the time.
func unauditedRules() []any {
	return []any{
		kube.Document{"level": "None", "nonResourceURLs": []any{
			"/healthz*", "/livez*", "/readyz*", "/version",
			"/openapi/*",
		}},
		kube.Document{"level": "None", "resources": []any{kube.Document{
			"group":     "coordination.k8s.io",
			"resources": []any{"leases"},
		}}},
		kube.Document{"level": "None", "resources": []any{
			kube.Document{"group": "", "resources": []any{"events"}},
			kube.Document{"group": "events.k8s.io", "resources": []any{"events"}},
		}},
		kube.Document{
			"level": "None", "verbs": []any{"get", "list", "watch"},
			"userGroups": []any{"system:nodes", "system:serviceaccounts:kube-system"}, "resources": []any{
				kube.Document{"group": "", "resources": []any{
					"nodes", "nodes/status", "pods", "pods/status",
					"services",
					"endpoints", "namespaces",
				}},
				kube.Document{"group": "discovery.k8s.io", "resources": []any{"endpointslices"}},
			},
		},
	}
}
