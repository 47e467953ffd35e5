package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A GitOps controller, which has to be given, at the release that it was read at.
const (
	fluxSource     = "ghcr.io/fluxcd/source-controller:v1.9.1"
	fluxSourceCRDs = "github.com/fluxcd/source-controller/releases/download/v1.9.1/source-controller.crds.yaml"
)

// A gitopsSite is a bundle with a chart and a Git repository, for a site that has neither.
type gitopsSite struct {
	*thread
	repo    *gittest.Repo // the repository at its upstream
	address string        // of the upstream's repository
	sources string        // of the manifest
}

func newGitopsSite(t *testing.T, given ...string) (*gitopsSite, *software.Software) {
	t.Helper()
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e")
	}
	th, made := connect(t, scenario{given: given, noCluster: true})
	keepProcessResult(t, nil, given)
	// The proxy of the machine is not for addresses of the machine.
	th.env = append(th.env, "HOME="+th.dir, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	s := &gitopsSite{thread: th, repo: gittest.Sample(t)}
	// A branch that is the first by name, and not the default one. Flux finds no version among tags of tags.
	s.repo.Git("branch", "another", "v1.0.0")
	s.repo.Git("tag", "-d", "v2")
	up := httptest.NewServer(gittest.Backend(filepath.Dir(s.repo.Dir)))
	t.Cleanup(up.Close)
	s.address = up.URL + "/" + filepath.Base(s.repo.Dir) + "/.git"
	manifest, err := os.ReadFile(filepath.Join(th.dir, "manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, sources, ok := strings.Cut(string(manifest), "\nsources:\n")
	if !ok {
		t.Fatalf("the manifest has no sources:\n%s", manifest)
	}
	s.sources = sources
	return s, made
}

// makeVersion builds a version of the bundle from what the upstream has now, and returns its file.
func (s *gitopsSite) makeVersion(t *testing.T, version string) string {
	t.Helper()
	write(t, s.dir, map[string]string{"site.yaml": fmt.Sprintf(`apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: site, version: %q}
platforms: [linux/amd64]
charts: [{name: web, repo: https://charts.lab.example/stable, version: 1.0.x}]
git: [{url: %q, name: deploy, refs: ["*"], imagesListed: true}]
sources:
%s`, version, s.address, s.sources)})
	file := filepath.Join(s.dir, "site-"+version+".kkb")
	s.connected(t, "build", "-o", file, "site.yaml").must(t, 0)
	return file
}

// with runs kkbundle with a password on standard input.
func (s *gitopsSite) with(t *testing.T, password string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.kkbundle, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = s.dir, s.env, strings.NewReader(password+"\n")
	return run(t, cmd)
}

// TestFlux lets a genuine source-controller of Flux, which is given, take charts and Git repositories from serve and
// from the registry that push fills, all behind TLS and logins, and follow a newer bundle.
func TestFlux(t *testing.T) {
	s, made := newGitopsSite(t, fluxSource, fluxSourceCRDs)
	bundle := s.makeVersion(t, "1.0.0")
	f := s.startFlux(t, made.Bin)
	ports := freePorts(t, 2)
	serve, registry := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	for user, password := range map[string]string{"reader": "reads", "pusher": "pushes"} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		write(t, s.dir, map[string]string{user: user + ":" + string(hash) + "\n"})
	}
	served := s.daemon(t, "serve", "--listen", serve, "--tls-auto", "--tls-dir", "tls", "--htpasswd", "reader", bundle)
	s.daemon(t, "registry", "serve", "--dir", "content", "--listen", registry, "--tls-auto", "--tls-dir", "tls-registry",
		"--htpasswd", "pusher", "--pull-htpasswd", "reader")
	s.answers(t, serve, "tls")
	s.answers(t, registry, "tls-registry")
	s.with(t, "pushes", "push", "--registry", registry, "--ca", "tls-registry/ca.pem", "--username", "pusher", "--password-stdin", bundle).must(t, 0)
	digest := s.chartDigest(t, bundle)
	commit := func(ref string) string { return s.repo.Git("rev-parse", ref+"^{commit}") }
	f.kubectl(t, fmt.Sprintf(fluxSecrets, serve, registry, indented(t, s.dir, "tls/ca.pem"), indented(t, s.dir, "tls-registry/ca.pem"))).must(t, 0)
	f.kubectl(t, strings.NewReplacer("SERVE", serve, "REGISTRY", registry, "COMMIT", commit("v1.0.0")).Replace(fluxSources)).must(t, 0)
	f.revisions(t, map[string]string{
		"helmchart/serve-oci": "1.0.0", "helmchart/serve-http": "1.0.0", "helmchart/registry": "1.0.0",
		"ocirepository/serve": "1.0.0@" + digest, "ocirepository/registry": "1.0.0@" + digest,
		"gitrepository/branch": "main@sha1:" + commit("main"), "gitrepository/tag": "v2.0.0@sha1:" + commit("v2.0.0"),
		"gitrepository/range":  "v1.0.0@sha1:" + commit("v1.0.0"),
		"gitrepository/commit": "main@sha1:" + commit("v1.0.0"), "gitrepository/name": "refs/heads/another@sha1:" + commit("another"),
	})
	for _, object := range []string{"ocirepository/wrong", "gitrepository/wrong"} {
		if said := f.ready(t, object); !strings.HasPrefix(said, "False ") {
			t.Errorf("%s with a wrong password: %s", object, said)
		}
	}
	s.repo.Write("more", "x")
	s.repo.Commit("more")
	s.repo.Git("tag", "v1.5.0")
	served()
	s.daemon(t, "serve", "--listen", serve, "--tls-auto", "--tls-dir", "tls", "--htpasswd", "reader", s.makeVersion(t, "1.1.0"))
	s.answers(t, serve, "tls")
	run(t, f.command(t, "annotate", "gitrepositories", "--all", "reconcile.fluxcd.io/requestedAt=now")).must(t, 0)
	f.revisions(t, map[string]string{
		"gitrepository/branch": "main@sha1:" + commit("main"), "gitrepository/range": "v1.5.0@sha1:" + commit("v1.5.0"),
		"gitrepository/tag": "v2.0.0@sha1:" + commit("v2.0.0"),
	})
}

const fluxSecrets = `
apiVersion: v1
kind: Secret
metadata: {name: serve}
stringData: {username: reader, password: reads, ca.crt: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: wrong}
stringData: {username: reader, password: wrong, ca.crt: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: serve-ca}
stringData: {ca.crt: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: registry-ca}
stringData: {ca.crt: %[4]s}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/dockerconfigjson
metadata: {name: pull}
stringData:
  .dockerconfigjson: '{"auths": {"%[1]s": {"username": "reader", "password": "reads"}, "%[2]s": {"username": "reader", "password": "reads"}}}'
---
apiVersion: v1
kind: Secret
type: kubernetes.io/dockerconfigjson
metadata: {name: pull-wrong}
stringData:
  .dockerconfigjson: '{"auths": {"%[2]s": {"username": "reader", "password": "no"}}}'
`

const fluxSources = `
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: serve-oci}
spec: {type: oci, interval: 10m, url: "oci://SERVE/charts.lab.example/stable", secretRef: {name: pull}, certSecretRef: {name: serve-ca}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: serve-http}
spec: {interval: 10m, url: "https://SERVE/charts", secretRef: {name: serve}, certSecretRef: {name: serve-ca}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: registry}
spec: {type: oci, interval: 10m, url: "oci://REGISTRY/charts.lab.example/stable", secretRef: {name: pull}, certSecretRef: {name: registry-ca}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmChart
metadata: {name: serve-oci}
spec: {chart: web, version: 1.x, interval: 10m, sourceRef: {kind: HelmRepository, name: serve-oci}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmChart
metadata: {name: serve-http}
spec: {chart: web, version: 1.x, interval: 10m, sourceRef: {kind: HelmRepository, name: serve-http}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmChart
metadata: {name: registry}
spec: {chart: web, version: 1.x, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: serve}
spec: {interval: 10m, url: "oci://SERVE/charts.lab.example/stable/web", ref: {tag: 1.0.0}, secretRef: {name: pull}, certSecretRef: {name: serve-ca}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: registry}
spec:
  interval: 10m
  url: oci://REGISTRY/charts.lab.example/stable/web
  ref: {semver: 1.x}
  layerSelector: {mediaType: application/vnd.cncf.helm.chart.content.v1.tar+gzip, operation: copy}
  secretRef: {name: pull}
  certSecretRef: {name: registry-ca}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: wrong}
spec: {interval: 10m, url: "oci://REGISTRY/charts.lab.example/stable/web", ref: {tag: 1.0.0}, secretRef: {name: pull-wrong}, certSecretRef: {name: registry-ca}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: branch}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {branch: main}, secretRef: {name: serve}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: tag}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {tag: v2.0.0}, secretRef: {name: serve}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: range}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {semver: 1.x}, secretRef: {name: serve}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: commit}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {branch: main, commit: COMMIT}, secretRef: {name: serve}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: name}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {name: refs/heads/another}, secretRef: {name: serve}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: wrong}
spec: {interval: 10m, url: "https://SERVE/git/deploy.git", ref: {branch: main}, secretRef: {name: wrong}}
`

// indented returns a file of a directory as a string of JSON, for YAML in one line.
func indented(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(string(data))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// daemon runs kkbundle until the test ends, or until stop is called.
func (s *gitopsSite) daemon(t *testing.T, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(s.kkbundle, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = s.dir, s.env, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// answers waits for a server of kkbundle.
func (s *gitopsSite) answers(t *testing.T, address, tlsDir string) {
	t.Helper()
	eventually(t, address+" answers", func() bool {
		cmd := exec.CommandContext(t.Context(), "curl", "-fsS", "--noproxy", "*", "--cacert", filepath.Join(s.dir, tlsDir, "ca.pem"), "https://"+address+"/healthz")
		return run(t, cmd).code == 0
	})
}

// chartDigest returns the digest of the bundle's chart.
func (s *gitopsSite) chartDigest(t *testing.T, bundle string) string {
	t.Helper()
	var index struct {
		Items []struct{ Kind, Digest string }
	}
	if err := json.Unmarshal([]byte(s.connected(t, "inspect", "--json", bundle).must(t, 0).stdout), &index); err != nil {
		t.Fatal(err)
	}
	for _, it := range index.Items {
		if it.Kind == "chart" {
			return it.Digest
		}
	}
	t.Fatalf("%s has no chart", bundle)
	return ""
}

// A flux is a source-controller on an API server without nodes.
type flux struct{ kubectlFile, kubeconfig string }

func (s *gitopsSite) startFlux(t *testing.T, bin string) *flux {
	t.Helper()
	server := apiServer(t, bin, "--disable-admission-plugins=ServiceAccount")
	f := &flux{filepath.Join(bin, "kubectl"), server.kubeconfig}
	crds, _, err := software.Given(fluxSourceCRDs)
	if err != nil {
		t.Fatal(err)
	}
	run(t, f.command(t, "apply", "-f", crds)).must(t, 0)
	run(t, f.command(t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")).must(t, 0)
	program, _, err := software.Given(fluxSource)
	if err != nil {
		t.Fatal(err)
	}
	ports := freePorts(t, 3)
	storage := fmt.Sprintf("127.0.0.1:%d", ports[0])
	background(t, t.TempDir(), "/usr/bin", "env", "KUBECONFIG="+f.kubeconfig, "RUNTIME_NAMESPACE=default", "NO_PROXY=127.0.0.1",
		"no_proxy=127.0.0.1", program, "--storage-path="+t.TempDir(), "--storage-addr="+storage, "--storage-adv-addr="+storage,
		fmt.Sprintf("--metrics-addr=127.0.0.1:%d", ports[1]), fmt.Sprintf("--health-addr=127.0.0.1:%d", ports[2]))
	eventually(t, "source-controller answers", func() bool {
		resp, err := http.Get("http://" + storage + "/") //nolint:noctx // it answers at once, or is not there
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil
	})
	return f
}

func (f *flux) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), f.kubectlFile, append([]string{"--kubeconfig", f.kubeconfig}, args...)...)
}

// kubectl applies manifests.
func (f *flux) kubectl(t *testing.T, manifests string) result {
	t.Helper()
	cmd := f.command(t, "apply", "-n", "default", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	return run(t, cmd)
}

// ready returns status and message of an object's condition Ready, when it has one.
func (f *flux) ready(t *testing.T, object string) (said string) {
	t.Helper()
	eventually(t, object+" has a condition", func() bool {
		const condition = `.status.conditions[?(@.type=="Ready")]`
		r := run(t, f.command(t, "get", object, "-o", "jsonpath={"+condition+".status} {"+condition+".message}"))
		said = r.stdout
		return r.code == 0 && (strings.HasPrefix(said, "True ") || strings.HasPrefix(said, "False "))
	})
	return said
}

// revisions waits until objects have the revisions that they should have.
func (f *flux) revisions(t *testing.T, want map[string]string) {
	t.Helper()
	for object, revision := range want {
		r := run(t, f.command(t, "wait", object, "--for=jsonpath={.status.artifact.revision}="+revision, "--timeout=2m"))
		if said := f.ready(t, object); r.code != 0 || !strings.HasPrefix(said, "True ") {
			t.Errorf("%s has not the revision %s: %s\n%s", object, revision, said, r.stderr)
		}
	}
}
