package clusterapi_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const templates = "../../provider/templates/"

// TestKubeVIPTemplate: the provider's template kube-vip is the one without a flavor, and the static pod of control
// planes that install makes.
func TestKubeVIPTemplate(t *testing.T) {
	t.Parallel()
	plain, err := os.ReadFile(templates + "cluster-template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	image, err := catalog.ImageRef(tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\n"), "kube-vip")
	if err != nil {
		t.Fatal(err)
	}
	const manifestFile, link = endpoint.KubeVIPManifest, "INTERFACE-OF-HOST"
	pod, err := endpoint.KubeVIP{
		Image: image, Address: "${CONTROL_PLANE_ENDPOINT}", Bits: 32, Interface: link, Loopback: "127.0.0.1",
		Config: kube.AdminConf,
	}.Pod()
	if err != nil {
		t.Fatal(err)
	}
	more := []string{
		"    # The interface is that of the host's address. kubeadm init grants admin.conf its rights late, through the address.",
		"    preKubeadmCommands:",
		`      - sed -i "s|` + link + `|$(ip -oneline address show to {{ ds.meta_data.local_ipv4 }} | awk '{print $2; exit}')|" ` + manifestFile,
		"      - test ! -e /run/kubeadm/kubeadm.yaml || sed -i '/ path/s|" + kube.AdminConf + "|" + endpoint.SuperAdminConf + "|' " + manifestFile,
		"    postKubeadmCommands:",
		"      - sed -i 's|" + endpoint.SuperAdminConf + "|" + kube.AdminConf + "|' " + manifestFile,
		"    files:",
		"      - path: " + manifestFile,
		"        owner: root:root",
		`        permissions: "0600"`,
		"        content: |",
	}
	for line := range strings.Lines(string(pod)) {
		more = append(more, "          "+strings.TrimSuffix(line, "\n"))
	}
	const begin, at = "apiVersion: cluster.x-k8s.io/v1beta2\n", "  kubeadmConfigSpec:\n"
	_, text, ok := strings.Cut(string(plain), begin)
	if !ok || strings.Count(text, at) != 1 {
		t.Fatalf("cluster-template.yaml has another shape:\n%s", plain)
	}
	text = "# A cluster like that of cluster-template.yaml, for clusterctl generate cluster --flavor kube-vip. CONTROL_PLANE_ENDPOINT is an unused address in the\n" +
		"# network of the control planes: kube-vip moves it from one to another.\n" + begin + strings.Replace(text, at, at+strings.Join(more, "\n")+"\n", 1)
	tasktest.Golden(t, "../"+templates+"cluster-template-kube-vip.yaml", []byte(text))
}
