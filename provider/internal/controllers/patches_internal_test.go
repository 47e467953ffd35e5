package controllers

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/yaml"
)

// TestAddFile: a document gives a file the content that the KubeadmConfig has, with the host's values in templates.
func TestAddFile(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("some words ", 9)
	for _, content := range []string{
		"", "a: b", "a: b\n", "a: b\n\n", "\n", "  a: b\n \n\tc \n", "# \u00e9 \u8282\n", "- \"a\": 'b'\n",
		"spec: {} \nname: " + long + "{{ ds.meta_data.local_hostname }} " + long + "\n",
		`a: {{ ds.meta_data["local_hostname"] }}`, "a: {{ ds.meta_data['local_hostname'] }} \n",
		"\x1f\x8b\xff\x00", "\ufeffa: b\n", "a\u2028b\u0085",
	} {
		var document bytes.Buffer
		for _, path := range []string{"/p/etcd0.yaml", "/p/etcd1.yaml"} {
			if err := addFile(&document, bootstrapv1.File{Path: path, Permissions: "0600", Owner: "root:root"}, content); err != nil {
				t.Fatal(err)
			}
		}
		var files []map[string]string
		if err := yaml.UnmarshalStrict(document.Bytes(), &files); err != nil || len(files) != 2 {
			t.Errorf("%q: %v\n%s", content, err, document.String())
			continue
		}
		for _, f := range files {
			got := f["content"]
			if f["encoding"] == "b64" {
				data, err := base64.StdEncoding.DecodeString(got)
				if err != nil {
					t.Error(err)
				}
				got = string(data)
			}
			if got != content || f["permissions"] != "0600" || f["owner"] != "root:root" {
				t.Errorf("%q is %q in\n%s", content, got, document.String())
			}
		}
		if _, variable, ok := strings.Cut(content, "{{"); ok {
			variable, _, _ = strings.Cut(variable, "}}")
			if strings.Count(document.String(), "{{"+variable+"}}") != len(files) {
				t.Errorf("no template finds its variables in\n%s", document.String())
			}
		}
	}
	var document bytes.Buffer
	if err := addFile(&document, bootstrapv1.File{Path: "/p/etcd.yaml", Encoding: bootstrapv1.Gzip}, "\x1f\x8b"); err != nil ||
		!strings.Contains(document.String(), "encoding: gzip+b64\n") {
		t.Errorf("%v: %s", err, document.String())
	}
}
