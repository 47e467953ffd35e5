package manifest_test

import (
	"fmt"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// All problems of a file are reported at once, with their places.
func ExampleParseBundle() {
	_, err := manifest.ParseBundle("manifest.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop}
platforms: [linux/amd46]
imges: [nginx:1.29]
`))
	fmt.Println(err)
	// Output:
	// manifest.yaml:3:11: metadata: version is missing; it becomes part of the bundle's file name
	// manifest.yaml:4:13: platforms[0]: "linux/amd46" is not a known platform; write one such as linux/amd64 or linux/arm64
	// manifest.yaml:5:1: unknown field "imges"; did you mean images?
}

func ExampleImageName() {
	fmt.Println(scalar.ImageName("nginx:1.29"))
	// Output:
	// docker.io/library/nginx:1.29 <nil>
}
