// Package deploy installs the charts and YAML of a bundle into a cluster that kkbundle did not make. It needs a
// kubeconfig and a registry that the cluster's nodes can pull from; it never touches nodes. Images are led to the
// registry by changing the objects before they are sent, see images.
//
// Charts come from strangers, so a child process renders them: this program, started with sandbox.Command. Main of a
// program that uses this package gives it charts.Tasks, as main of a program that uses package builder gives it
// builder.Tasks.
//
// What was deployed is recorded in the cluster: Helm's own releases, and one ConfigMap for each bundle name.
package deploy
