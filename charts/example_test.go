package charts_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/charts"
)

// Package a chart's directory and render it as an install would.
func ExampleRender() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"Chart.yaml":         "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"values.yaml":        "image: nginx:1.29\n",
		"templates/pod.yaml": "kind: Pod\nspec: {containers: [{image: {{ .Values.image }}}]}\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}

	chart, err := charts.LoadDir(dir)
	if err != nil {
		log.Fatal(err)
	}
	var archive bytes.Buffer
	if err := chart.Archive(&archive); err != nil {
		log.Fatal(err)
	}
	r, err := charts.Render(&archive, charts.RenderOptions{
		Release: "web", Namespace: "shop", KubeVersion: "v1.34.3",
		MaxOutput: 1 << 20,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range r.Files {
		fmt.Print(f.Name, "\n", f.Content)
	}
	// Output:
	// web/templates/pod.yaml
	// kind: Pod
	// spec: {containers: [{image: nginx:1.29}]}
}
