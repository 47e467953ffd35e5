// Package installer makes a Kubernetes cluster of hosts and a bundle, over SSH and without internet access. It installs
// and provisions; every other verb of kkbundle is a package below it.
//
// plan.Plan lists an installation's phases of tasks. A task can look (is the state reached?) and do. Everything else
// follows from that list: a dry run only looks, a second run continues the first, a run on a finished cluster changes
// nothing, and the tasks' needs are the content of a bundle. Every change on a host is a plain command, which an
// operator can read in install.log and repeat by hand, or a call of kkbundle-node, the helper on every host.
//
// The packages below it, from the foundation up:
//   - host: runs commands over SSH and copies files
//   - node: the helper on hosts and its protocols
//   - kube: the objects of an API server
//   - task: a task, its Site and its Host
//   - report: the results of runs and of health checks
//   - precheck: checks of hosts before an installation
//   - machine: a host below Kubernetes: names, kernel, swap, clock, packages
//   - authority: the operator's own certificate authorities
//   - cri: container runtimes
//   - siteregistry: the registry that nodes pull from
//   - etcd: external etcd, members and backups
//   - member: a node's record of its cluster
//   - endpoint: the address of the API server
//   - kubeadm, k3s: the distributions
//   - cluster: labels, taints and the administrator's kubeconfig
//   - addon: pod network, DNS, services, charts and manifests
//   - diagnose: causes of failures
//   - health: the state of a cluster
//   - bootstrap: steps of cloud-init and Ignition documents
//   - engine: runs phases on hosts
//   - plan: the phases, and the needs that follow from them
//   - begin: the run of every verb, the precheck, refusals
//   - reset, nodes, etcdops, rotate, look, upgrade: the verbs
package installer
