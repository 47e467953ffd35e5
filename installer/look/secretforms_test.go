package look

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
)

// TestSecretForms has texts for each form, as programs write them. hunter2 is the secret, and PUBLIC has to stay.
func TestSecretForms(t *testing.T) {
	t.Parallel()
	const h16, h32 = "hunter2hunter2hu", "hunter2hunter2hunter2hunter2hunt"
	texts := map[string][]string{
		"name and value": {
			"PASSWORD_X=hunter2", "passwordHash: hunter2", "psk=hunter2", "wpa-psk: hunter2", "TOKEN_1=hunter2",
			"DB_PASSWORD_FILE=hunter2", `{"auth":"hunter2","PUBLIC":1}`,
			"password: hunter2,hunter2;hunter2", "secret: hunter2", "wep-key0=hunter2",
			"aws_secret_access_key = hunter2", "identitytoken: hunter2", "X-Vault-Token: hunter2",
			"client-key-data: hunter2",
		},
		"variable": {"- name: DB_PASSWORD\n  value: hunter2", `{"name":"API_TOKEN","value":"hunter2"}`},
		"flag and value": {
			"PUBLIC --token hunter2", "PUBLIC --password  'hunter2 hunter2' PUBLIC",
			"kubeadm join PUBLIC --certificate-key hunter2",
		},
		"directive":        {"auth_pass hunter2"},
		"netrc":            {"machine PUBLIC login PUBLIC password hunter2"},
		"chrony key":       {"1 SHA1 HEX:hunter2", "25 MD5 hunter2"},
		"flag -p":          {"docker login -u PUBLIC -p hunter2 PUBLIC", "PUBLIC -p 'hunter2 hunter2'"},
		"flag -p of MySQL": {"mysqldump -u root -phunter2 PUBLIC"},
		"flag with a login": {
			"skopeo copy --src-creds PUBLIC:hunter2 PUBLIC",
			"curl -sS -u PUBLIC:hunter2 https://PUBLIC", "ctr images pull --user PUBLIC:hunter2",
		},
		"webhook": {"https://hooks.slack.com/services/hunter2"},
		"header":  {"Authorization: Basic hunter2hunter2", "a bearer hunter2"},
		"address with a password": {
			"HTTP://PUBLIC:hunter2@PUBLIC:3128/PUBLIC", "https://PUBLIC:hun/ter2hunter2@PUBLIC/PUBLIC",
			"amqp://PUBLIC:hunter2@hunter2@PUBLIC", "redis://:hunter2@PUBLIC",
		},
		"address with a token": {"https://" + h32 + "@PUBLIC/PUBLIC.git"},
		"signed address": {
			"https://PUBLIC/PUBLIC?a=PUBLIC&sig=hunter2&b=PUBLIC",
			"https://PUBLIC/?X-Amz-Signature=hunter2",
		},
		"signature": {"PUBLIC Signature=0123456789abcdef0123"},
		"private key": {
			"-----BEGIN PGP PRIVATE KEY BLOCK-----\nhunter2\n-----END PGP PRIVATE KEY BLOCK-----\nPUBLIC",
			"-----BEGIN EC PRIVATE KEY-----\nhunter2",
		},
		"web token": {"PUBLIC eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2"},
		"password hash": {
			"PUBLIC:$6$hunter2hunter2$hunter2hunter2",
			"PUBLIC:$2y$10$hunter2hunter2", "PUBLIC $argon2id$v=19$m=65536,t=3,p=4$hunter2$hunter2",
		},
		"LDAP hash": {"PUBLIC {SSHA}hunter2hunter2="},
		"k3s token": {"PUBLIC K10" + strings.Repeat("0a", 32) + "::server:hunter2"},
		"age": {
			"PUBLIC AGE-SECRET-KEY-1HUNTER2HUNTER2",
			"PUBLIC AGE-SECRET-KEY-PQ-1HUNTER2HUNTER2",
		},
		"GitHub": {"PUBLIC ghp_" + h32, "PUBLIC gho_" + h32, "PUBLIC github_pat_" + h16 +
			"_" + h32},
		"GitLab":    {"PUBLIC glpat-" + h16},
		"Tailscale": {"PUBLIC tskey-auth-" + h16 + "-" + h16},
		"AWS":       {"PUBLIC AKIAHUNTER2HUNTER2HU"},
		"Slack":     {"PUBLIC xoxb-" + h16, "PUBLIC xapp-1-" + h16},
		"npm, Hugging Face, PyPI, Docker Hub": {
			"PUBLIC npm_" + h32, "PUBLIC hf_" + h32, "PUBLIC pypi-" + h32,
			"PUBLIC dckr_pat_" + h16,
		},
		"Google":         {"PUBLIC AIza" + h32},
		"Stripe, OpenAI": {"PUBLIC sk_live_" + h16, "PUBLIC sk-" + h32},
		"Vault":          {"PUBLIC hvs." + h32},
		"DigitalOcean":   {"PUBLIC dop_v1_0123456789abcdef0123456789abcdef"},
	}
	s := newScrubber(task.NewMasker())
	for _, f := range s.forms {
		if len(texts[f.Name]) == 0 {
			t.Errorf("the form %s has no example", f.Name)
		}
		for _, text := range texts[f.Name] {
			if f.Replace(text, task.Masked) == text {
				t.Errorf("%s: the form is not that of %s", f.Name, text)
			}
			got := s.text(text)
			for _, secret := range []string{"hunter2", "HUNTER2", "0123456789abcdef", "ter2"} {
				if strings.Contains(got, secret) {
					t.Errorf("%s: %s became %s", f.Name, text, got)
				}
			}
			if a, b := strings.Count(got, "PUBLIC"), strings.Count(text, "PUBLIC"); a != b {
				t.Errorf("%s: %d of %d words that are no secrets are left of %s: %s", f.Name, a, b, text, got)
			}
		}
		delete(texts, f.Name)
	}
	for name := range texts {
		t.Errorf("no form is named %s", name)
	}
	for _, text := range []string{
		"docker run -p 8080:80 nginx", "ssh -p 22 host", "mkdir -p /etc/kkbundle", "registry.site:5000/app@sha256:0123",
		"https://registry.site:5000/v2/app@sha256:0123 is missing",
		"secretName: a", "topologyKey: a", "kubectl get pods -o wide", "pod glance-api-7d9f8b6c5-abcde",
		"imagePullSecrets:", "keyring: a", "I1127 10:00:00.000000 1 authentication.go:75] started",
	} {
		if got := s.text(text); got != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// TestSupportBundleTakesSettingsOnly runs the script on a host's files: what is not known to hold settings stays there.
func TestSupportBundleTakesSettingsOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/chrony/chrony.conf":                            "pool PUBLIC",
		"etc/chrony/chrony.keys":                            "1 SHA1 hunter2",
		"etc/kubernetes/manifests/kube-apiserver.yaml":      "image: PUBLIC",
		"etc/kubernetes/admin.conf":                         "hunter2",
		"etc/kubernetes/security/encryption.yaml":           "hunter2",
		"etc/kubernetes/renamed":                            "hunter2",
		"etc/rancher/k3s/config.yaml":                       "node-name: PUBLIC",
		"etc/rancher/k3s/registries.yaml":                   "hunter2",
		"etc/rancher/k3s/k3s.yaml":                          "hunter2",
		"etc/containerd/config.toml":                        "version = PUBLIC",
		"etc/containerd/certs.d/docker.io/hosts.toml":       "server = \"PUBLIC\"\n[host.\"PUBLIC\"]\n  capabilities = [\"PUBLIC\"]\n  [host.\"x\".header]\n    X-Mine = [\"hunter2\"]\n",
		"etc/kkbundle/registry/config.yaml":                 "hunter2",
		"etc/kkbundle/etcd/s3":                              "hunter2",
		"etc/systemd/system/kubelet.service":                "ExecStart=PUBLIC",
		"etc/systemd/system/kubelet.service.d/10-mine.conf": "PUBLIC",
		"etc/systemd/system/k3s.service.env":                "hunter2",
		"etc/systemd/system/app-of-the-site.service":        "hunter2",
		"etc/cni/net.d/10-calico.conflist":                  "PUBLIC",
		"etc/cni/net.d/calico-kubeconfig":                   "hunter2",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(root, "script")
	rooted := strings.NewReplacer("/etc/", root+"/etc/", "/var/lib/", root+"/var/lib/").Replace(supportBundleScript)
	if err := os.WriteFile(script, []byte(rooted), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "sh", script, "1000000", "configuration.txt").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "hunter2") {
		t.Errorf("a secret is in\n%s", out)
	}
	if n := strings.Count(string(out), "PUBLIC"); n != 10 {
		t.Errorf("%d of 10 settings are in\n%s", n, out)
	}
}
