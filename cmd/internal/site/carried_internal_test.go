package site

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const carriedHead = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\nkubernetes: {version: v1.34.3}\n"

// openCarried opens a site whose cluster file is in the bundle, beside further documents.
func openCarried(t *testing.T, f Flags, cluster string, more map[string]string) (*Site, error) {
	t.Helper()
	b := bundletest.NewBuilder(t)
	docs := map[string]string{bundle.DocumentCluster: carriedHead + cluster}
	for name, text := range more {
		docs[name] = text
	}
	for name, text := range docs {
		item, err := bundle.Document{Kind: bundle.KindManifest, Ref: name, Data: []byte(text)}.Put(t.Context(), b.Cache)
		if err != nil {
			t.Fatal(err)
		}
		b.Item(item)
	}
	made := b.Bundle()
	f.InventoryFile = filepath.Join(t.TempDir(), "inventory.yaml")
	inventory := "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts: {a: {address: 192.0.2.1}}\ngroups: {kube_control_plane: [a], etcd: [a], kube_worker: [a]}\n"
	if err := os.WriteFile(f.InventoryFile, []byte(inventory), 0o600); err != nil {
		t.Fatal(err)
	}
	console := terminal.NewConsole(terminal.Streams{Out: io.Discard, Err: io.Discard})
	s, err := Open(t.Context(), console, f, func() (*bundle.Reader, error) { return bundle.Open(made.Path) })
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

// TestBundleNamesNothingOfThisMachine: a bundle's cluster file with a password of this machine is refused when the
// site is opened, before any host or registry is asked.
func TestBundleNamesNothingOfThisMachine(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ cluster, want string }{
		"a file": {"imageRegistry: {type: existing, address: evil.example, auth: {username: u, passwordFile: " +
			secret + "}}\n", "imageRegistry.auth.passwordFile"},
		"a variable":    {"imageRegistry: {type: existing, address: evil.example, auth: {username: u, passwordEnv: HOME}}\n", "imageRegistry.auth.passwordEnv"},
		"an etcd's key": {"etcd: {type: provided, endpoints: [\"https://192.0.2.9:2379\"], ca: a.pem, cert: b.pem, key: c.pem}\n", "etcd.key"},
		"an authority": {
			"certificates: {ca: {cert: a.pem, key: /etc/kubernetes/pki/ca.key}}\n",
			"certificates.ca.key",
		},
		"a file by alias": {"imageRegistry: {type: existing, address: evil.example, auth: {username: &x " + secret +
			", passwordFile: *x}}\n", "imageRegistry.auth.passwordFile"},
	} {
		s, err := openCarried(t, Flags{}, c.cluster, nil)
		if err == nil {
			password := ""
			if ask := s.registryPassword(); ask != nil {
				password, err = ask()
			}
			t.Errorf("%s: the site opened; the password is %q, %v", name, password, err)
			continue
		}
		for _, want := range []string{
			"cluster.yaml:", c.want + ": ", "-c FILE",
			"kkbundle extract BUNDLE cluster.yaml",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error lacks %q: %v", name, want, err)
			}
		}
	}
}

// TestSettingsNameThisMachine: --set is the operator's word, for a field that the bundle leaves out and for one that
// it has.
func TestSettingsNameThisMachine(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, auth := range map[string]string{
		"left out": "{username: u}",
		"replaced": "{username: u, passwordFile: /etc/shadow}",
	} {
		s, err := openCarried(t, Flags{settings: []string{"imageRegistry.auth.passwordFile=" + secret}},
			"imageRegistry: {type: existing, address: r.example, auth: "+auth+"}\n", nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := s.registryPassword()(); err != nil || got != "hunter2" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestSettingsNameFilesOfThisMachine: an absolute path that --set gives is a file of this machine, where the cluster file
// has names in the bundle.
func TestSettingsNameFilesOfThisMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, catalogFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "catalog.yaml")
	for file, text := range map[string]string{
		ca: "the site's", catalogFile: "apiVersion: kkbundle.io/v1\nkind: Catalog\nreleases: {v1.34: v1.34.3}\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(dir, "cluster.yaml")
	cluster := "imageRegistry: {type: existing, address: r.example, ca: ca.pem}\n"
	if err := os.WriteFile(own, []byte(carriedHead+cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"", own} {
		for _, settings := range [][]string{
			{"imageRegistry.ca=" + ca}, {"imageRegistry=", "imageRegistry={type: existing, address: r.example, ca: " + ca + "}"},
		} {
			f := Flags{ClusterFile: file, settings: append(settings, "catalog=["+catalogFile+"]")}
			s, err := openCarried(t, f, cluster, map[string]string{"ca.pem": "the bundle's"})
			if err != nil {
				t.Fatalf("cluster file %q: %s: %v", file, settings, err)
			}
			if got, err := s.values(s.Cluster.ImageRegistry.CA); err != nil || string(got) != "the site's" {
				t.Errorf("cluster file %q: %s: %q, %v", file, settings, got, err)
			}
		}
	}
}

// TestBundleReadsFromItself: paths in a bundle's cluster file are names in the bundle, whatever lies at that path here.
func TestBundleReadsFromItself(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(outside, []byte("here: true"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openCarried(t, Flags{}, "cni: {type: flannel, values: [v/values.yaml, "+outside+
		", ../../../../etc/passwd]}\n", map[string]string{"v/values.yaml": "inside: true"})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := s.values("v/values.yaml"); err != nil || string(data) != "inside: true" {
		t.Errorf("%q, %v", data, err)
	}
	for _, name := range s.Cluster.CNI.Values[1:] {
		if data, err := s.values(name); err == nil {
			t.Errorf("%s was read from this machine: %q", name, data)
		}
	}
	if _, err := openCarried(t, Flags{}, "catalog: ["+outside+"]\n", nil); err == nil {
		t.Error("a catalog was read from this machine")
	}
	if s.Cluster.ImageRegistry.Type != manifest.RegistryPlain {
		t.Error("defaults are missing")
	}
}

// TestBundlesCatalogCounts: a bundle of a kkbundle with other defaults is installed with the names and versions of
// its own catalog, from the bundle's cluster file and from the operator's.
func TestBundlesCatalogCounts(t *testing.T) {
	t.Parallel()
	const old = "apiVersion: kkbundle.io/v1\nkind: Catalog\nreleases: {v1.34: v1.34.3}\ncomponents: {runc: {default: v1.2.6, file: {url: \"https://old.example/{version}/runc.{arch}\"}}}\n"
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(carriedHead), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", file} {
		s, err := openCarried(t, Flags{ClusterFile: name}, "", map[string]string{bundle.DocumentCatalog: old})
		if err != nil {
			t.Fatal(err)
		}
		need := manifest.Need{Kind: manifest.ItemFile, Name: "runc"}
		if ref, err := catalog.Ref(s.Cluster, need, "linux/amd64"); err != nil ||
			ref != "https://old.example/v1.2.6/runc.amd64" {
			t.Errorf("cluster file %q: runc is %q, %v", name, ref, err)
		}
	}
	_, err := openCarried(t, Flags{}, "", map[string]string{bundle.DocumentCatalog: old +
		"zones: {cn: [{host: a.example, mirror: b.example, ca: /etc/shadow}]}\n"})
	if err == nil || !strings.Contains(err.Error(), "a bundle's catalog has no mirrors") {
		t.Errorf("a catalog with a file of this machine: %v", err)
	}
}
