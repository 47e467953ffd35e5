// Package cri installs container runtimes (containerd, CRI-O, Docker with cri-dockerd), points them at the site's
// registry, and loads images into them where there is no registry.
package cri
