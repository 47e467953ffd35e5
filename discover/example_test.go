package discover_test

import (
	"fmt"
	"log"

	"github.com/kkbundle/kkbundle/discover"
)

// Find the images in Kubernetes YAML.
func ExampleFinder_YAML() {
	f, err := discover.NewFinder(nil)
	if err != nil {
		log.Fatal(err)
	}
	r, err := f.YAML([]byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {spec: {containers: [{name: web, image: "nginx:1.29"}]}}}
`), discover.Place{File: "web.yaml"})
	if err != nil {
		log.Fatal(err)
	}
	for _, image := range r.Images {
		fmt.Println(image.Ref, "in", image.Place)
	}
	// Output:
	// docker.io/library/nginx:1.29 in web.yaml: Deployment shop/web: spec.template.spec.containers[0].image
}
