package convert_test

import (
	"fmt"
	"log"

	"github.com/kkbundle/kkbundle/convert"
)

// Read a list of images, as `kkbundle convert` does.
func ExampleRead() {
	r, err := convert.Read("images.txt", []byte("nginx:1.29\nquay.io/prometheus/node-exporter:v1.9.1\n"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Formats)
	for _, image := range r.Bundle.Images {
		fmt.Println(image.Name)
	}
	// Output:
	// [list of images]
	// nginx:1.29
	// quay.io/prometheus/node-exporter:v1.9.1
}
