// Package cri installs container runtimes (containerd, CRI-O, Docker with cri-dockerd), configures the site's registry
// as their mirror, and loads images into them if the site has none.
package cri
