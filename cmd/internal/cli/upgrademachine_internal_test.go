package cli

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/provision"
)

// TestFilesOf: a document for upgrade-machine writes whole files, and does nothing else.
func TestFilesOf(t *testing.T) {
	t.Parallel()
	host := provision.Metadata{Hostname: "node1", IPv4: netip.MustParseAddr("10.0.0.7")}
	files, err := filesOf("f", []byte("## template: jinja\n#cloud-config\nwrite_files:\n"+
		"- {path: /p/kubeletconfiguration.yaml, permissions: '0600', content: 'address: {{ ds.meta_data.local_ipv4 }}'}\n"), host)
	if err != nil || len(files) != 1 || string(files[0].Data) != "address: 10.0.0.7" || files[0].Mode != 0o600 {
		t.Errorf("%+v, %v", files, err)
	}
	for document, want := range map[string]string{
		"#cloud-config\nruncmd: [reboot]\n":                                             "is not to write a whole file",
		"#cloud-config\nwrite_files:\n- {path: /p/a, content: x, append: true}\n":       "is not to write a whole file",
		"#cloud-config\nwrite_files:\n- {path: p/a, content: x}\n":                      "absolute",
		`{"ignition": {"version": "3.4.0"}, "passwd": {"groups": [{"name": "wheel"}]}}`: "is not to write a whole file",
	} {
		if _, err := filesOf("f", []byte(document), host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", document, err, want)
		}
	}
}
