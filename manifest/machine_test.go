package manifest

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// TestEveryTextIsClassified fails for a new field of text until somebody has decided whether this machine resolves
// it: then the field gets the tag local, else a place in the list below.
func TestEveryTextIsClassified(t *testing.T) {
	var found []string
	seen := map[reflect.Type]bool{}
	var walk func(t reflect.Type, at string, f document.Field)
	walk = func(typ reflect.Type, at string, f document.Field) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem(), at, f)
		case reflect.Struct:
			if _, isText := reflect.New(typ).Interface().(encoding.TextUnmarshaler); isText || seen[typ] {
				return
			}
			seen[typ] = true
			for _, one := range document.Fields(typ) {
				walk(typ.Field(one.Index).Type, typ.Name()+"."+one.Name, one)
			}
		case reflect.String:
			// A text with values of its own, such as a policy, names nothing.
			if f.Local == "" && len(f.Enum) == 0 {
				found = append(found, at)
			}
			if f.Local != "" && f.Local != document.LocalMachine && f.Local != document.LocalCarried {
				t.Errorf("%s: local:%q", at, f.Local)
			}
		default:
		}
	}
	for _, file := range []any{Cluster{}, Inventory{}, Bundle{}, catalogfile.Catalog{}} {
		walk(reflect.TypeOf(file), "", document.Field{})
	}
	slices.Sort(found)
	found = slices.Compact(found)
	for _, name := range found {
		if !slices.Contains(namesNothingLocal(), name) {
			t.Errorf("%s is new: tag it local:%q or local:%q if the machine that kkbundle runs on reads it as a path or a variable, else list it in this test", name, document.LocalMachine, document.LocalCarried)
		}
	}
	for _, name := range namesNothingLocal() {
		if !slices.Contains(found, name) {
			t.Errorf("%s is listed and is no field of text without a tag", name)
		}
	}
}

func TestMachineFields(t *testing.T) {
	head := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\n"
	for name, c := range map[string]struct {
		text string
		sets []string
		want []string
	}{
		"none": {"imageRegistry: {type: existing, address: r.example, ca: ca.pem}\n", nil, nil},
		"a variable": {
			"imageRegistry: {type: existing, address: r.example, auth: {username: u, passwordEnv: HOME}}\n",
			nil,
			[]string{"imageRegistry.auth.passwordEnv"},
		},
		"a file": {"imageRegistry: {type: existing, address: r.example, auth: {username: u, passwordFile: /etc/shadow}}\n", nil, []string{"imageRegistry.auth.passwordFile"}},
		"keys": {
			"certificates: {ca: {cert: a, key: b}}\n", nil,
			[]string{"certificates.ca.cert", "certificates.ca.key"},
		},
		"a setting": {
			"imageRegistry: {type: existing, address: r.example, auth: {username: u}}\n",
			[]string{"imageRegistry.auth.passwordFile=p"},
			nil,
		},
		"replaced":      {"imageRegistry: {type: existing, address: r.example, auth: {username: u, passwordFile: /etc/shadow}}\n", []string{"imageRegistry.auth.passwordFile=p"}, nil},
		"another set":   {"imageRegistry: {type: existing, address: r.example, auth: {username: u, passwordFile: /etc/shadow}}\n", []string{"imageRegistry.auth.username=p"}, []string{"imageRegistry.auth.passwordFile"}},
		"by an alias":   {"imageRegistry: {type: existing, address: &x r.example, auth: {username: u, passwordFile: *x}}\n", nil, []string{"imageRegistry.auth.passwordFile"}},
		"a merged part": {"imageRegistry: {type: existing, address: r.example, auth: {username: u, passwordFile: /etc/shadow}}\n", []string{"imageRegistry={address: q.example}"}, []string{"imageRegistry.auth.passwordFile"}},
	} {
		k, err := ParseCluster("cluster.yaml", []byte(head+c.text), c.sets...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, p := range k.WithDefaults().MachineFields("refused") {
			path, ok := strings.CutSuffix(p.Message, ": refused")
			if got = append(got, path); !ok || p.Line == 0 {
				t.Errorf("%s: %v", name, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestCarriedFiles(t *testing.T) {
	c := Cluster{
		Catalog: []string{"c"}, Addons: []Addon{{Values: []string{"v"}, Manifests: []string{"m", "v"}}},
		CNI: CNI{Values: []string{"n"}},
	}
	c.Kubernetes.Patches, c.ImageRegistry.CA, c.Etcd.Key = []string{"p"}, "ca", "not carried"
	if got := strings.Join(c.CarriedFiles(), " "); got != "c ca m n p v" {
		t.Error(got)
	}
	if got := strings.Join((&Bundle{
		Manifests: []YAML{{Path: "*.yaml"}},
		Deploy:    []Addon{{Values: []string{"v"}, Manifests: []string{"m"}}},
	}).CarriedFiles(), " "); got != "m v" {
		t.Error(got)
	}
	b := Bundle{Cluster: "x", Sources: []sources.Source{{Host: "a"}, {Host: "b", Cert: "c", Key: "k"}, {Directory: "d"}}}
	if got := fmt.Sprint(b.MachineSources(
		"x")); got != "sources[1].cert: x\nsources[1].key: x\nsources[2].directory: x" {
		t.Error(got)
	}
}

// namesNothingLocal lists the fields of text that this machine never resolves: names, versions, addresses of others,
// paths on hosts and in registries, patterns of references, and text for people.
func namesNothingLocal() []string {
	return []string{
		"Verify.identity", "Verify.issuer",
		"BackupKeys.recipients", "Addon.chart", "Addon.group", "Addon.namespace",
		"Chart.group", "File.group", "GitRepository.group", "GitRepository.name", "GitRepository.refs",
		"GitRepository.url", "Group.description", "Image.group", "PackageSet.group", "YAML.group",
		"Addon.release",
		"Variant.excludeImages", "Variant.platforms", "Variant.values", "Variant.zone",
		"Without.charts", "Without.deploy", "Without.files", "Without.git", "Without.groups", "Without.images", "Without.packages",
		"Without.sources",
		"Bundle.apiVersion", "Bundle.excludeImages", "Bundle.kind", "Bundle.platforms", "Bundle.zone",
		"CNI.version",
		"CRI.version",
		"Catalog.apiVersion", "ClusterAPI.provider", "ClusterAPI.version", "ClusterDNS.domain", "Catalog.endOfLife", "Catalog.kind", "Catalog.releases",
		"Catalog.removedArguments", "Catalog.removedGates",
		"CatalogChart.from", "CatalogChart.name", "CatalogChart.repo", "CatalogChart.url", "CatalogChart.version",
		"CatalogEntry.default", "CatalogEntry.follows", "CatalogEntry.minimum", "CatalogEntry.platforms",
		"CatalogEntry.since",
		"CatalogFile.checksums", "CatalogFile.stable", "CatalogFile.url", "CatalogFile.version", "CatalogFormer.before",
		"CatalogFormer.checksums", "CatalogFormer.url",
		"CatalogImage.before", "CatalogImage.from", "CatalogImage.name", "CatalogImage.tags",
		"CatalogPackage.debian", "CatalogPackage.releases", "CatalogPackage.rpm",
		"Chart.name", "Chart.repo", "Chart.url", "Chart.version",
		"Cluster.apiVersion", "Cluster.kind",
		"Component.version",
		"Definition.default", "Definition.description", "Definition.example", "Definition.pattern",
		"Endpoint.address", "Endpoint.interface",
		"Etcd.dataDir", "Etcd.endpoints",
		"Self.checksums", "Self.platforms", "Self.sha256", "Self.url",
		"File.checksums", "File.name", "File.platforms", "File.sha256", "File.url", "File.version",
		"Fit.from", "Fit.line", "Fit.to",
		"Groups.etcd", "Groups.image_registry", "Groups.kube_control_plane", "Groups.kube_worker", "Groups.nfs",
		"HostEndpoint.interface",
		"HostEtcd.dataDir",
		"HostSpec.address", "HostSpec.annotations", "HostSpec.internalIPv4", "HostSpec.internalIPv6", "HostSpec.labels",
		"Image.digest", "Image.name", "Image.platforms",
		"ImageRegistry.address", "ImageRegistry.vip", "S3.accessKey", "S3.bucket", "S3.endpoint", "S3.prefix",
		"S3.region",
		"ImageRule.apiVersion", "ImageRule.images", "ImageRule.kind", "ImageRule.paths",
		"Inventory.apiVersion", "Inventory.kind",
		"InventoryMetadata.name",
		"KubeadmImages.coredns", "KubeadmImages.etcd", "KubeadmImages.pause", "KubeadmImages.program",
		"Through.least", "Through.take", "Through.to",
		"Kubernetes.upgradeFrom", "Kubernetes.version",
		"Metadata.name", "Metadata.version",
		"Override.host", "Override.path", "Override.sha256", "Override.url", "Override.with",
		"PackageSet.distribution", "PackageSet.install", "PackageSet.platforms", "PackageSet.sha256",
		"RuntimeClass.binary", "RuntimeClass.name", "RuntimeClass.nodeSelector", "RuntimeClass.options",
		"RuntimeClass.type",
		"Precheck.minKernel",
		"RegistryAuth.username",
		"Repository.components", "Repository.suite", "Repository.url",
		"SSH.bastion", "SSH.user",
		"Source.host", "Source.mirror",
		"Storage.nfsPath",
		"Target.apiVersions", "Target.version",
		"Time.servers",
		"Vars.annotations", "Vars.labels",
	}
}
