package installer

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

	"github.com/kkbundle/kkbundle/manifest"
)

// What the levels of kubernetes.security do, and which benchmark asks for it, is in docs/site/security.md.

const (
	hardened    = "hardened"
	securityDir = "/etc/kubernetes/security"
	auditDir    = "/var/log/kubernetes/audit"
	auditLog    = auditDir + "/audit.log"
	// encryptionFile, on control planes and in the work directory, has the key that Secrets are encrypted with in etcd.
	encryptionFile   = "encryption.yaml"
	encryptionOnHost = securityDir + "/" + encryptionFile
)

func isHardened(c *manifest.Cluster) bool { return c.Kubernetes.Security == hardened }

// securityPart is what the cluster's level of security adds.
func (r *run) securityPart() configPart {
	flags := map[string]map[string]string{}
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		flags[name] = map[string]string{"profiling": "false", "tls-min-version": "VersionTLS12"}
	}
	part := configPart{flags: flags, kubelet: document{
		"tlsMinVersion":  "VersionTLS12",
		"readOnlyPort":   0,
		"authentication": document{"anonymous": document{"enabled": false}, "webhook": document{"enabled": true}},
		"authorization":  document{"mode": "Webhook"},
	}}
	if isHardened(r.cluster) {
		r.harden(&part)
	}
	return part
}

// harden adds the level hardened.
func (r *run) harden(part *configPart) {
	suites := strings.Join(cipherSuites(), ",")
	for _, flags := range part.flags {
		flags["tls-cipher-suites"] = suites
	}
	for _, name := range []string{controllerManager, scheduler} {
		part.flags[name]["bind-address"] = "127.0.0.1"
		if !r.has4() {
			part.flags[name]["bind-address"] = "::1"
		}
	}
	api := part.flags[apiServer]
	api["enable-admission-plugins"] = "NodeRestriction"
	api["admission-control-config-file"] = securityDir + "/admission.yaml"
	api["encryption-provider-config"] = encryptionOnHost
	api["audit-policy-file"] = securityDir + "/audit-policy.yaml"
	api["audit-log-path"] = auditLog
	for name, most := range auditLimits() {
		api[name] = strconv.Itoa(most)
	}
	if r.limitsAnonymous() {
		api["authentication-config"] = securityDir + "/authentication.yaml"
	}
	part.volumes = map[string][]hostVolume{apiServer: {
		{name: "kkbundle-security", path: securityDir, kind: "Directory"},
		{name: "kkbundle-audit", path: auditDir, kind: "DirectoryOrCreate", writable: true},
	}}
	if r.cluster.Etcd.Type == "internal" {
		part.cluster = document{"etcd": document{"local": document{"extraArgs": document{"cipher-suites": suites, "tls-min-version": "TLS1.2"}}}}
	}
	var list []any
	for _, suite := range cipherSuites() {
		list = append(list, suite)
	}
	part.kubelet["tlsCipherSuites"] = list
	part.kubelet["protectKernelDefaults"] = true
	part.kubelet["seccompDefault"] = true
	part.kubelet["streamingConnectionIdleTimeout"] = "5m0s"
	part.kubelet["podPidsLimit"] = podProcesses
	part.kubelet["enableProfilingHandler"] = false
}

// podProcesses is the most processes of a pod: far more than services start, and far less than a fork bomb.
const podProcesses = 4096

// auditLimits keep the audit log below about a gigabyte: 100 MB a file, ten files, a month (CIS 1.2.17 to 1.2.19).
func auditLimits() map[string]int {
	return map[string]int{"audit-log-maxage": 30, "audit-log-maxbackup": 10, "audit-log-maxsize": 100}
}

// cipherSuites are those of TLS 1.2 with forward secrecy and authenticated encryption; TLS 1.3 has no others.
func cipherSuites() []string {
	return []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	}
}

// limitsAnonymous tells whether the API server can be told which paths are open to everybody: since 1.32, and not beside
// flags for the same thing.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#anonymous-requests
func (r *run) limitsAnonymous() bool {
	if r.isBefore(1, 32) {
		return false
	}
	component, _ := r.cluster.Kubernetes.Kubeadm[apiServer].(map[string]any)
	for _, a := range argsOf(component["extraArgs"]) {
		if a.name == "anonymous-auth" || a.name == "authentication-config" || strings.HasPrefix(a.name, "oidc-") {
			return false
		}
	}
	return true
}

// isBefore tells whether the cluster's Kubernetes is older than a minor release.
func (r *run) isBefore(major, minor uint64) bool {
	v, err := semver.NewVersion(r.cluster.Kubernetes.Version)
	return err == nil && v.LessThan(semver.New(major, minor, 0, "", ""))
}

// hardenedParameters are the kernel parameters that the kubelet looks at with protectKernelDefaults.
// https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/component-helpers/node/util/sysctl/sysctl.go
func hardenedParameters(c *manifest.Cluster) []parameter {
	if !isHardened(c) {
		return nil
	}
	return []parameter{
		{key: "vm.overcommit_memory", value: 1, required: true},
		{key: "vm.panic_on_oom", value: 0, required: true},
		{key: "kernel.panic", value: 10, required: true},
		{key: "kernel.panic_on_oops", value: 1, required: true},
		{key: "kernel.keys.root_maxkeys", value: 1000000, required: true},
		{key: "kernel.keys.root_maxbytes", value: 25000000, required: true},
	}
}

// securityTasks put what the API server reads on control planes, before kubeadm starts it.
func securityTasks(c *manifest.Cluster) []Task {
	if !isHardened(c) {
		return nil
	}
	return []Task{settle(Task{
		Name: "security", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: OneByOne, Leaves: Leaves{Paths: []string{auditDir}},
	}, securitySetting)}
}

func securitySetting(ctx context.Context, t *Target) (setting, error) {
	encryption, err := t.run.encryption(ctx)
	if err != nil {
		return setting{}, err
	}
	files := []textFile{{encryptionOnHost, 0o600, encryption}}
	wanted := map[string]document{"admission.yaml": admissionConfig(), "audit-policy.yaml": auditPolicy()}
	if t.run.limitsAnonymous() {
		wanted["authentication.yaml"] = authenticationConfig(t.run.isBefore(1, 34))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		data, err := documents(wanted[name])
		if err != nil {
			return setting{}, err
		}
		files = append(files, textFile{securityDir + "/" + name, 0o600, data})
	}
	return setting{files: files, apply: restartAPIServer}, nil
}

// restartAPIServer lets a running API server read its files anew: the kubelet starts it again.
func restartAPIServer(ctx context.Context, t *Target) error {
	if member, err := t.isMember(ctx); err != nil || !member {
		return err
	}
	return t.restartStatic(ctx, "kube-apiserver")
}

// encryption returns the EncryptionConfiguration of all control planes. It is made once. The one that is on a control plane
// wins over the work directory's copy: without its keys, Secrets cannot be read any more, and an operator may have
// changed them there.
func (r *run) encryption(ctx context.Context) ([]byte, error) {
	r.secretsMu.Lock()
	defer r.secretsMu.Unlock()
	kept, err := r.dir.read(encryptionFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	there, err := r.firstControlPlane().read(ctx, encryptionOnHost)
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
	if err := r.hideKeys(kept); err != nil {
		return nil, err
	}
	return kept, r.dir.write(encryptionFile, kept)
}

// hideKeys keeps the keys of an EncryptionConfiguration out of the log.
func (r *run) hideKeys(data []byte) error {
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
		return fmt.Errorf("%s is no EncryptionConfiguration: %w", encryptionOnHost, err)
	}
	for _, resource := range config.Resources {
		for _, provider := range resource.Providers {
			for _, kind := range provider {
				for _, key := range kind.Keys {
					r.mask.hide(key.Secret)
				}
			}
		}
	}
	return nil
}

// newEncryption makes a key. What was written before there was one can still be read (identity).
// https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/
func newEncryption() ([]byte, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails: https://pkg.go.dev/crypto/rand#Read
	return documents(document{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "EncryptionConfiguration",
		"resources": []any{document{
			"resources": []any{"secrets"},
			"providers": []any{
				document{"secretbox": document{"keys": []any{document{"name": "kkbundle1", "secret": base64.StdEncoding.EncodeToString(key)}}}},
				document{"identity": document{}},
			},
		}},
	})
}

// authenticationConfig lets everybody see whether the API server is well, and what a joining node needs to trust it.
func authenticationConfig(beta bool) document {
	version := "apiserver.config.k8s.io/v1"
	if beta {
		version += "beta1"
	}
	var open []any
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/api/v1/namespaces/kube-public/configmaps/cluster-info"} {
		open = append(open, document{"path": path})
	}
	return document{
		"apiVersion": version,
		"kind":       "AuthenticationConfiguration",
		"anonymous":  document{"enabled": true, "conditions": open},
	}
}

// admissionConfig refuses pods that could take over their node, and warns of those that could do with less. Namespaces that
// need more say so by labels; kube-system is left alone.
// https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/
func admissionConfig() document {
	return document{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "AdmissionConfiguration",
		"plugins": []any{document{
			"name": "PodSecurity",
			"configuration": document{
				"apiVersion": "pod-security.admission.config.k8s.io/v1",
				"kind":       "PodSecurityConfiguration",
				"defaults": document{
					"enforce": "baseline", "enforce-version": "latest",
					"audit": "restricted", "audit-version": "latest",
					"warn": "restricted", "warn-version": "latest",
				},
				"exemptions": document{"namespaces": []any{"kube-system"}, "usernames": []any{}, "runtimeClasses": []any{}},
			},
		}},
	}
}

// auditPolicy logs who did what, with the content of what changes permissions and workloads, never that of Secrets, and
// leaves out what the cluster's own parts ask all the time.
// https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
func auditPolicy() document {
	secret := []any{
		document{"group": "", "resources": []any{"secrets", "configmaps", "serviceaccounts/token"}},
		document{"group": "authentication.k8s.io", "resources": []any{"tokenreviews"}},
	}
	return document{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		"omitStages": []any{"RequestReceived"},
		"rules": []any{
			document{"level": "None", "nonResourceURLs": []any{"/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*"}},
			document{"level": "None", "resources": []any{document{"group": "coordination.k8s.io", "resources": []any{"leases"}}}},
			document{"level": "None", "resources": []any{document{"group": "", "resources": []any{"events"}}, document{"group": "events.k8s.io", "resources": []any{"events"}}}},
			document{"level": "None", "verbs": []any{"get", "list", "watch"}, "userGroups": []any{"system:nodes", "system:serviceaccounts:kube-system"}, "resources": []any{
				document{"group": "", "resources": []any{"nodes", "nodes/status", "pods", "pods/status", "services", "endpoints", "namespaces"}},
				document{"group": "discovery.k8s.io", "resources": []any{"endpointslices"}},
			}},
			document{"level": "Metadata", "resources": secret},
			document{"level": "Metadata", "verbs": []any{"get", "list", "watch"}},
			document{"level": "Request", "resources": []any{
				document{"group": ""},
				document{"group": "apps"},
				document{"group": "batch"},
				document{"group": "rbac.authorization.k8s.io"},
				document{"group": "networking.k8s.io"},
				document{"group": "policy"},
				document{"group": "admissionregistration.k8s.io"},
			}},
			document{"level": "Metadata"},
		},
	}
}
