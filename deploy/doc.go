// Package deploy installs the charts and YAML of a bundle into a cluster that kkbundle did not make. It needs a
// kubeconfig and a registry that the cluster's nodes can pull from; it never touches nodes. Images are led to the
// registry by changing the objects before they are sent, see images.
//
// What was deployed is recorded in the cluster: Helm's own releases, and one ConfigMap for each bundle name.
package deploy
