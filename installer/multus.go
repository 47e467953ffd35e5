package installer

import (
	"context"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// multusTask adds multus to the network of the pods' first interface: its plugin, which calls that network's, as in
// https://github.com/k8snetworkplumbingwg/multus-cni/blob/v4.2.4/deployments/multus-daemonset.yml.
func multusTask() Task {
	t := manifestsTask(multus, func(_ context.Context, t *Target) (applied, error) {
		data, err := multusManifest(t.run.cluster)
		return applied{name: multus, namespace: systemNamespace, data: data, wait: chartWait}, err
	})
	t.Images = []string{multus}
	t.Roles = []manifest.Role{manifest.RoleControlPlane}
	t.Leaves = Leaves{Paths: []string{"/opt/cni/bin/multus", "/opt/cni/bin/passthru"}} // as install_multus of v4.2 has it
	return t
}

// attachments is the custom resource that says which further networks there are
// (https://github.com/k8snetworkplumbingwg/multi-net-spec).
func attachments() document {
	return document{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": document{"name": "network-attachment-definitions.k8s.cni.cncf.io"},
		"spec": document{
			"group": "k8s.cni.cncf.io", "scope": "Namespaced",
			"names": document{
				"plural": "network-attachment-definitions", "singular": "network-attachment-definition",
				"kind": "NetworkAttachmentDefinition", "shortNames": []any{"net-attach-def"},
			},
			"versions": []any{document{
				"name": "v1", "served": true, "storage": true,
				"schema": document{"openAPIV3Schema": document{
					"type": "object",
					"properties": document{
						"apiVersion": document{"type": "string"}, "kind": document{"type": "string"}, "metadata": document{"type": "object"},
						"spec": document{"type": "object", "properties": document{"config": document{"type": "string"}}},
					},
				}},
			}},
		},
	}
}

// multusManifest has no configuration of its own: the plugin's image writes 00-multus.conf, which the runtime takes because its
// name is the first, for whatever other configuration is there, and again when that changes.
func multusManifest(c *manifest.Cluster) ([]byte, error) {
	image, err := catalog.ImageRef(c, multus)
	if err != nil {
		return nil, err
	}
	meta := document{"name": multus, "namespace": systemNamespace}
	allow := func(groups, resources []any, verbs ...any) document {
		return document{"apiGroups": groups, "resources": resources, "verbs": verbs}
	}
	return documents(
		attachments(),
		document{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
		document{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": document{"name": multus},
			"rules": []any{
				allow([]any{"k8s.cni.cncf.io"}, []any{"network-attachment-definitions"}, "get", "list", "watch"),
				allow([]any{""}, []any{"pods", "pods/status"}, "get", "list", "update", "watch"),
				allow([]any{"", "events.k8s.io"}, []any{"events"}, "create", "patch", "update"),
			},
		},
		document{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": document{"name": multus},
			"roleRef":  document{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": multus},
			"subjects": []any{document{"kind": "ServiceAccount", "name": multus, "namespace": systemNamespace}},
		},
		document{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta,
			"spec": document{
				"selector": document{"matchLabels": document{"name": multus}},
				"template": document{"metadata": document{"labels": document{"name": multus}}, "spec": multusPod(image)},
			},
		},
	)
}

func multusPod(image string) document {
	mount := func(name, path string) document { return document{"name": name, "mountPath": "/host" + path} }
	volume := func(name, path string) document {
		return document{"name": name, "hostPath": document{"path": path}}
	}
	container := func(name, command string, requests document, args ...any) document {
		return document{
			"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": []any{command}, "args": args,
			"resources":                document{"requests": requests},
			"securityContext":          document{"privileged": true},
			"terminationMessagePolicy": "FallbackToLogsOnError",
			"volumeMounts":             []any{mount("cni", "/etc/cni/net.d"), mount("plugins", "/opt/cni/bin")},
		}
	}
	return document{
		"hostNetwork":                   true,
		"serviceAccountName":            multus,
		"priorityClassName":             "system-node-critical",
		"terminationGracePeriodSeconds": 10,
		"tolerations": []any{
			document{"operator": "Exists", "effect": "NoSchedule"}, document{"operator": "Exists", "effect": "NoExecute"},
		},
		"initContainers": []any{container("install", "/install_multus", document{"cpu": "10m", "memory": "15Mi"}, "--type", "thin")},
		"containers": []any{container(
			"multus", "/thin_entrypoint", document{"cpu": "50m", "memory": "50Mi"},
			"--multus-conf-file=auto", "--multus-autoconfig-dir=/host/etc/cni/net.d", "--cni-conf-dir=/host/etc/cni/net.d",
		)},
		"volumes": []any{volume("cni", "/etc/cni/net.d"), volume("plugins", "/opt/cni/bin")},
	}
}
