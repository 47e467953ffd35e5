package marks

import (
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A Place is where a mark is.
type Place string

// The places, in the order of All.
const (
	Hosts         Place = "every host"
	Nodes         Place = "nodes"
	ControlPlanes Place = "control planes"
	First         Place = "the first control plane"
	EtcdHosts     Place = "hosts of etcd"
	API           Place = "the cluster's API"
	Work          Place = "the work directory"
)

// A Mark is one thing that kkbundle leaves to tell a later run something.
type Mark struct {
	// Path is the file or directory; capital letters stand for names. In the API it is the name of a label,
	// annotation or object.
	Path string
	At   Place
	// Written says who writes the mark, and when.
	Written string
	// Next says what the next run reads from it, also after one that was killed.
	Next string
	// Gone says who removes it; "" is reset, which removes everything on a host.
	Gone string
}

// A group is the marks of one subject, in the order of writing.
type group struct {
	title string
	marks []Mark
}

func groups() []group {
	return []group{
		{"Every run", ofRuns()},
		{"The host as it was", ofHosts()},
		{"Nodes", ofNodes()},
		{"Upgrade and rollback", ofUpgrades()},
		{"Move of the endpoint", ofMoves()},
		{"Replacement of authorities", ofAuthorities()},
		{"etcd", ofEtcd()},
		{"Proofs", ofProofs()},
		{"Records in the cluster", ofClusters()},
		{"Bootstrap documents", ofBootstraps()},
		{"The work directory", ofWork()},
	}
}

// All returns every mark, by subject, and for each subject in the order of writing.
func All() []Mark {
	var list []Mark
	for _, g := range groups() {
		list = append(list, g.marks...)
	}
	return list
}

// ofRuns are the marks of every run, whatever it does.
func ofRuns() []Mark {
	return []Mark{
		{
			Lock, Hosts, "every run that changes something, before all else: `flock`, held by a command that needs a heartbeat every 15 s",
			"a run that finds it held is refused (exit code 17). A host frees the lock of a killed run within a minute; the file itself says nothing", "",
		},
		{
			LockOwner, Hosts, "with the lock",
			"named by the refusal; a run of the same machine whose process is gone is waited for", "",
		},
		{
			host.HelperPath, Hosts, "after the login, if its digest is another one", "used",
			"a `precheck` and a `--dry-run` remove it from hosts without an installation",
		},
		{
			Received, Hosts, "the helper: content by its digest as it arrives (parts/), then a receipt for each unpacked file (receipts.json)",
			"content continues at the byte; a file whose receipt and digest fit is not sent again. A damaged receipts.json means that files are unpacked again", "",
		},
		{task.KubectlCache, ControlPlanes, "kubectl", "a cache", ""},
		{
			string(Setting("TASK")), Hosts,
			"a task with files and units, last: the files, then their effect, then the digest of files and programs",
			"without it the task writes, applies and restarts again; with another digest `install` refuses and `upgrade` replaces node by node; a file that differs though the stamp fits is repaired", "",
		},
		{
			Hooks + "/SCRIPT", Hosts, "after a script of the operator succeeded: a copy of it",
			"the script runs again if it differs, or with `--force`", "",
		},
		{
			Adding, Hosts, "`nodes add`, on each new host before its first change",
			"`nodes add` runs the scripts of `post_install` there again, also if the host has joined", "the same run, at its end",
		},
		{Packages, Hosts, "during the installation of operating system packages", "written anew", "the same task"},
	}
}

// ofHosts are the states that reset restores. Each is written before its change.
func ofHosts() []Mark {
	const kept = "an existing one is kept: the present values may be kkbundle's"
	return []Mark{
		{
			SysctlBefore, Hosts, "before kernel parameters are set: those that differ",
			"values that it has are kept, others added", "",
		},
		{SwapMasked, Hosts, "before swap.target is masked", kept, ""},
		{ForwardBefore, Hosts, "before Docker's first start", kept, ""},
		{NFSServerBefore, Hosts, "before an NFS server is started that did not run", kept, ""},
		{
			ContainerdBefore, Nodes, "before containerd's files are replaced: the former files, then `complete`",
			"with `complete`, or the stamp of containerd, it is kept; otherwise it is made anew, unless the host's files are kkbundle's already", "reset, last of all",
		},
		{
			string(Clock), Hosts, "before the time servers are changed",
			"reset restores the clock's configuration only with it", "",
		},
		{
			task.BlockBegin, Hosts, "in /etc/hosts and chrony's configuration, around kkbundle's lines",
			"lines in it are replaced, no others", "",
		},
		{
			task.CommentedOut, Hosts, "in /etc/fstab and chrony's configuration, before a line that is disabled",
			"reset enables the lines", "",
		},
		{
			task.DataListFile, Hosts, "a reset without `--with-data`: the data that stays",
			"a later `reset --with-data` removes those", "that reset",
		},
	}
}

// ofNodes are the marks of kubeadm and of a node's cluster.
func ofNodes() []Mark {
	return []Mark{
		{
			string(KubeadmBegun), Nodes, "before `kubeadm init` and `join`; it stays after them",
			"without the record below: a kubeadm that still runs is stopped, then `kubeadm reset`, and kubeadm again",
			"that `kubeadm reset`; reset",
		},
		{KubeadmConfig, Nodes, "for a kubeadm; has a token", "written anew", "the same step, also after an error"},
		{
			string(Member), Nodes, "after kubeadm: the cluster's name and release, and the settings that its creation fixed; by `upgrade` and `endpoint move` as the last step on a node",
			"with it the host is a node: another name is refused, another release is `upgrade`'s. An upgrade knows by it which nodes are complete", "",
		},
		{
			AdoptionDir + "/RELEASE", Nodes, "`adopt --yes`, before the record: programs and settings of the tool that made the cluster, then `complete`",
			"without the record on the node: made anew. With it and without kkbundle's kubelet, `install`, `nodes delete` and `reset` refuse", "`adopt --undo`, after the record; reset",
		},
		{
			string(SecretsEncrypted), First, "after every Secret was rewritten: the digest of the configuration",
			"with another configuration they are rewritten", "",
		},
		{
			RegistryData, Hosts, "the registry and pushes to it; blobs are whole or absent",
			"content that is there is not pushed again", "`reset --with-data`",
		},
	}
}

// ofUpgrades are the marks of upgrades and rollbacks.
func ofUpgrades() []Mark {
	const copies = CopiesDir + "/RELEASE"
	return []Mark{
		{
			copies, Nodes, "*keep*, before anything changes on the node: programs, settings and manifests of the release before",
			"without `complete` in it: made anew. It is the way back of `--rollback`",
			"`--forget-rollback`, a complete rollback, `certs rotate-ca --finish`",
		},
		{
			copies + "/" + copiesComplete, Nodes,
			"last of *keep*; and *begin* of a rollback renames `finished` back to it",
			"a continued upgrade keeps these copies, on control planes once one has been changed", "renamed",
		},
		{
			string(UpgradeBegun), Nodes,
			"before `kubeadm upgrade` on a control plane; *begin* of a rollback, on every node",
			"the node is `not complete`: a kubeadm that still runs is stopped, and the step is done again",
			"the end of the step",
		},
		{
			string(ServerUpgraded), ControlPlanes,
			"after kubeadm, when the API server answers with the new release: the record that the node will have",
			"kubeadm is not run again; the kubelet is still to do", "with the node's record; *begin* of a rollback",
		},
		{
			UpgradingAnnotation, API, "on the node, before it is cordoned: the release that it goes to",
			"such nodes come first and are uncordoned at the end. A node without it that is unschedulable stays so",
			"after the node is uncordoned",
		},
		{
			copies + "/" + copiesFinished, Nodes, "after the node's record: `complete` is renamed to it",
			"the next upgrade keeps anew", "with the copies",
		},
	}
}

// ofMoves are the marks of a move of the endpoint.
func ofMoves() []Mark {
	return []Mark{
		{
			string(EndpointMove), ControlPlanes, "`endpoint move`, first: a line for each endpoint that nodes may use",
			"the move goes on from all of them; `certs rotate-ca` refuses", "the last step of the move",
		},
		{
			NewServing, ControlPlanes,
			"a new certificate of the API server with its key, until both are moved into use, first the key",
			"a certificate without its key is moved, too; then the directory is removed", "the same step",
		},
		{
			ProxyEndpointAnnotation, API, "on kube-proxy's pods: the API server that they started with",
			"with another one the pods are replaced", "never",
		},
	}
}

// ofAuthorities are the marks of a replacement of certificate authorities.
func ofAuthorities() []Mark {
	return []Mark{
		{
			RotationDir, ControlPlanes, "`certs rotate-ca`: both generations with their keys",
			"other commands that would rewrite its files refuse", "`--finish` and `--rollback`, last",
		},
		{
			RotationNames, ControlPlanes, "after both generations", "without it the directory is incomplete and made anew",
			"before the directory",
		},
		{
			string(AuthorityStage), Nodes,
			"after a node's programs have read the files of a stage: trust, issue or finish",
			"with another stage the files are written and the programs restarted again", "",
		},
		{
			RotationBefore, First, "when new pods trust both generations: the older pods", "those are to be replaced",
			"with the directory",
		},
		{
			RotationEnd, ControlPlanes, "before the other generation is removed from the first file: the one that stays",
			"the other one of `--finish` and `--rollback` is refused from then on", "with the directory",
		},
		{
			KubeadmClient, First, "for a kubelet's client certificate", "written anew",
			"the same step, also after an error",
		},
	}
}

// ofEtcd are the marks of etcd and its restores.
func ofEtcd() []Mark {
	return []Mark{
		{
			string(EtcdMember), EtcdHosts, "when every member of external etcd is healthy for the first time",
			"a member without data has lost them, and joins instead of forming a new etcd", "",
		},
		{
			Snapshot, EtcdHosts, "`etcd backup` and `restore`: the snapshot",
			"a backup deletes it first; a restore uses a file of the right digest", "the end of either",
		},
		{
			"DATA/" + RestoredData, EtcdHosts, "a restore, before anything is stopped: the new data",
			"deleted and made anew", "renamed into place",
		},
		{
			HeldManifests, ControlPlanes, "a restore: the manifests of stopped pods, each moved at once",
			"the next restore reads them there, and moves them back at its end", "the end of the restore",
		},
		{
			"DATA/" + OldData + "TIME", EtcdHosts, "data that a restore or a new membership replaces, renamed", "nothing",
			"never: delete it by hand",
		},
		{
			"DATA/member/" + UnfinishedData, EtcdHosts, "in the new data, until its member is healthy",
			"data with it are deleted, and not kept as old data", "when the member is healthy",
		},
		{"DATA/" + DiscardedData, EtcdHosts, "data of an unfinished restore, renamed", "deleted", "the same step"},
	}
}

// ofProofs are the marks of the verification.
func ofProofs() []Mark {
	return []Mark{
		{
			string(JoinProof), First, "a proof that nodes can join: the endpoint and the authority",
			"proved once for these", "",
		},
		{string(NetworkProof), First, "a proof of the pod network: the nodes", "proved once for these", ""},
		{string(VolumeProof), First, "a proof of volumes: the storage class", "proved once for it", ""},
		{
			string(DNSCrowded), First, "when CoreDNS cannot be spread: the nodes", "not tried again with the same nodes",
			"",
		},
		{
			ProofLabel, API, "on the pods and Services of a proof", "deleted before the next proof",
			"the end of the proof",
		},
		{
			VolumesNamespace, API, "the namespace of a proof of volumes", "deleted before the next proof",
			"the end of the proof",
		},
	}
}

// ofClusters are the records of a cluster in its API.
func ofClusters() []Mark {
	return []Mark{
		{
			string(Namespaces), First, "after namespaces got their defaults: the digest of these",
			"applied again if they differ", "",
		},
		{
			TaintsAnnotation, API, "with a node's taints: those that kkbundle owns", "only these are changed and removed",
			"with the last taint",
		},
		{
			ManifestsLabel, API, "on the ConfigMap of an addon's YAML, after it is applied: its digest and its objects",
			"applied again if it differs or an object is missing; a warning names objects that left the list", "never",
		},
		{
			"kkbundle.io/content", API, "on the record of a Helm release: the digest of chart and values",
			"the same content is not installed again; a pending release is taken over", "with the release",
		},
		{
			CorefileAnnotation, API, "on the pods of node-local DNS: the digest of its configuration",
			"with another one the pods are replaced", "with the pods",
		},
		{
			PeersLoginAnnotation, API, "on the pods of Spegel: the digest of their login",
			"with another one the pods are replaced", "with the pods",
		},
	}
}

// ofBootstraps are the marks of `provision`.
func ofBootstraps() []Mark {
	return []Mark{
		{
			Owner, Hosts, "`provision --owner`, before the first change, and `handover`: the machine of Cluster API, NAMESPACE/CLUSTER/MACHINE",
			"the same owner's `provision` and `reset` continue; another `--owner`, `install`, `upgrade`, `nodes` and `provision` without it are refused. A `reset` without `--owner` works",
			"reset, last of all; `handover --undo`",
		},
		{
			Receipt("DOCUMENT", 1) + ".begun", Hosts, "before a step appends to a file: the digest of the result",
			"a file with this digest is complete, so that nothing is appended twice", "",
		},
		{
			Receipt("DOCUMENT", 1), Hosts, "after a step of a bootstrap document, for each number", "the step is skipped",
			"",
		},
		{Sentinel, Hosts, "after all steps; in memory", "the steps are done; after a reboot it is written again", ""},
	}
}

// ofWork are the marks in the work directory of the installing machine.
func ofWork() []Mark {
	return []Mark{
		{
			"lock", Work, "every run that changes something", "as a host's lock; free as soon as the process is gone",
			"never",
		},
		{
			"pki, registry", Work, "the first task that needs a key or a password; each file whole or not at all",
			"used. Without them new ones are made, and the hosts get those", "never",
		},
		{task.AdminConfFile, Work, "when the API server answers", "fetched again", "reset of the whole cluster"},
		{
			SavedUnfinished, Work, "*save* of an upgrade or rollback: etcd's snapshot and ConfigMaps",
			"deleted and made anew", "renamed to TIME-FROM-to-TO",
		},
		{
			SavedNow, Work, "after *save*: the release and that directory",
			"with the same release nothing is saved again: a rollback needs the state before the first attempt",
			"after the last node",
		},
		{UpgradeReport, Work, "after a complete upgrade, or the first one that ended between nodes", "`--plan` and `--window` judge times by it", "never"},
		{
			SiteValues, Work, "install or upgrade of a bundle with values of the site, before the first change",
			"taken over where none is given", "never",
		},
		{
			SiteGroups, Work, "install or upgrade of a bundle with groups, before the first change",
			"taken over where none is given", "never",
		},
		{task.LogFile + ", report.json", Work, "every run", "`status` names the last one", "never"},
	}
}
