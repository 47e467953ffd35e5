//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/clusterapi"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// A managementCluster plays kubectl and clusterctl on the first control plane.
type managementCluster struct {
	installed map[string]string // versions of providers, by type and name
	commands  []string          // clusterctl's
	waits     []string          // kubectl's
	issuer    string            // version of cert-manager, "" where it is missing
	fail      error             // of clusterctl, once it has recorded its providers
	ill       string            // the namespace of a Deployment that is not available, and of its pod
}

func (m *managementCluster) clusterctl(_ context.Context, cmd host.Cmd) error {
	line := strings.Join(cmd.Args, " ")
	m.commands = append(m.commands, line)
	kinds := map[string]string{
		"--core": "CoreProvider", "--bootstrap": "BootstrapProvider", "--control-plane": "ControlPlaneProvider",
		"--infrastructure": "InfrastructureProvider",
	}
	for i, arg := range cmd.Args {
		if kind := kinds[arg]; kind != "" {
			name, version, _ := strings.Cut(cmd.Args[i+1], ":")
			m.installed[kind+"/"+name] = version
		}
	}
	if m.issuer == "" || strings.Contains(line, " upgrade apply ") {
		m.issuer = "v1.21.1"
	}
	return m.fail
}

// objects are the Deployments of the recorded providers and of cert-manager, with its namespace, and one of a provider
// that is the operator's.
func (m *managementCluster) objects() []any {
	if len(m.installed) == 0 {
		return []any{}
	}
	items := []any{kube.Document{"apiVersion": "v1", "kind": "Namespace", "metadata": kube.Document{"name": "cert-manager"}}}
	for _, namespace := range []string{
		"cert-manager", "capi-system", "capi-kubeadm-bootstrap-system", "capi-kubeadm-control-plane-system",
		"kkbundle-provider-system", "operators-system",
	} {
		if namespace == "cert-manager" && m.issuer == "" {
			continue
		}
		status := "True"
		if namespace == m.ill || namespace == "operators-system" {
			status = "False"
		}
		items = append(items, kube.Document{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": kube.Document{
				"name": "controller", "namespace": namespace,
				"annotations": kube.Document{"cert-manager.clusterctl.cluster.x-k8s.io/version": m.issuer},
			},
			"status": kube.Document{"conditions": []any{kube.Document{"type": "Available", "status": status}}},
		})
	}
	return items
}

func (m *managementCluster) kubectl(_ context.Context, cmd host.Cmd) error {
	line := strings.Join(cmd.Args, " ")
	switch {
	case strings.Contains(line, "get crd ") && len(m.installed) > 0:
		_, err := io.WriteString(cmd.Stdout, "customresourcedefinition.apiextensions.k8s.io/providers.clusterctl.cluster.x-k8s.io\n")
		return err
	case strings.Contains(line, "get providers.clusterctl.cluster.x-k8s.io"):
		var items []any
		for id, version := range m.installed {
			kind, name, _ := strings.Cut(id, "/")
			items = append(items, kube.Document{"type": kind, "providerName": name, "version": version})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
	case strings.Contains(line, "get namespaces,deployments --all-namespaces --selector=clusterctl.cluster.x-k8s.io"):
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": m.objects()})
	case strings.Contains(line, " wait "):
		m.waits = append(m.waits, line)
		if m.ill != "" {
			return errors.New("timed out waiting for the condition on deployments/controller")
		}
	case strings.Contains(line, "get pods"):
		items := []any{}
		if strings.Contains(line, "--namespace="+m.ill+" ") || strings.HasSuffix(line, "--namespace="+m.ill) {
			items = append(items, kube.Document{
				"metadata": kube.Document{"name": "webhook", "namespace": m.ill},
				"status":   kube.Document{"phase": "Pending"},
			})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
	}
	return nil
}

// TestClusterAPI: clusterctl installs the providers that are missing and upgrades those of earlier versions, from its
// own configuration and with nothing of root's home; a run that finds them all does nothing.
func TestClusterAPI(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
	m := &managementCluster{installed: map[string]string{}}
	s.Hosts["cp1"].Answer("kubectl", m.kubectl)
	s.Hosts["cp1"].Answer("env", m.clusterctl)
	phases := []task.Phase{{Name: "install", Tasks: slices.DeleteFunc(plan.Tasks(s.Options.Cluster),
		func(t task.Task) bool { return t.Name != "cluster-api" })}}
	run := func() (string, error) {
		m.commands = nil
		err := s.Run(t, nil).Phases(t.Context(), phases)
		return strings.Join(m.commands, "\n"), err
	}
	const flags = " --kubeconfig /etc/kubernetes/admin.conf --wait-providers --wait-provider-timeout 300 "
	command := "env XDG_CONFIG_HOME=/etc/kkbundle " + clusterapi.Program
	init := command + " init" + flags + "--core cluster-api:v1.14.2 --bootstrap kubeadm:v1.14.2 --control-plane kubeadm:v1.14.2 --infrastructure kkbundle:v0.1.0"
	if got, err := run(); got != init || err != nil {
		t.Errorf("an empty cluster: %v\n%s\nwant\n%s", err, got, init)
	}
	if got, err := run(); got != "" || err != nil {
		t.Errorf("a second run: %v\n%s", err, got)
	}

	m.installed["CoreProvider/cluster-api"] = "v1.14.0"
	delete(m.installed, "InfrastructureProvider/kkbundle")
	want := command + " upgrade apply" + flags + "--core cluster-api:v1.14.2\n" +
		command + " init" + flags + "--infrastructure kkbundle:v0.1.0"
	if got, err := run(); got != want || err != nil {
		t.Errorf("an earlier and a missing one: %v\n%s\nwant\n%s", err, got, want)
	}

	for _, version := range []string{"v1.20.0", ""} {
		m.issuer = version
		want = command + " upgrade apply" + flags + "--core cluster-api:v1.14.2"
		if got, err := run(); got != want || err != nil || m.issuer != "v1.21.1" {
			t.Errorf("cert-manager %q: %v\n%s\nwant\n%s", version, err, got, want)
		}
	}
	m.issuer = "v1.22.0"

	m.installed["BootstrapProvider/kubeadm"] = "v1.15.0"
	s.Events = nil
	got, err := run()
	if got != "" || err != nil || !strings.Contains(fmt.Sprint(s.Events),
		"provider bootstrap-kubeadm stays v1.15.0, which is later than v1.14.2 of the bundle") {
		t.Errorf("a later one: %v\n%s\n%v", err, got, s.Events)
	}
}

// TestClusterAPIFails: an error of clusterctl has its reason from the pods that are not ready. clusterctl has recorded its
// providers by then, and a run that comes after waits for them, and fails like the first until they are available.
func TestClusterAPIFails(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
	m := &managementCluster{installed: map[string]string{}, ill: "capi-system", fail: errors.New("deployment is not ready after 5m0s: timed out")}
	s.Hosts["cp1"].Answer("kubectl", m.kubectl)
	s.Hosts["cp1"].Answer("env", m.clusterctl)
	phases := []task.Phase{{Name: "install", Tasks: slices.DeleteFunc(plan.Tasks(s.Options.Cluster),
		func(t task.Task) bool { return t.Name != "cluster-api" })}}
	for _, run := range []string{"the first", "a second"} {
		err := s.Run(t, nil).Phases(t.Context(), phases)
		if text := fmt.Sprint(err); !strings.Contains(text, "timed out") || !strings.Contains(text, "failures/") {
			t.Errorf("%s run: %v", run, err)
		}
	}
	const wait = "wait --for=condition=Available --timeout=300s --namespace=capi-system deployment/controller"
	if len(m.commands) != 1 || len(m.waits) != 1 || !strings.Contains(m.waits[0], wait) {
		t.Errorf("clusterctl ran %q, and kubectl %q; want one command, and %s", m.commands, m.waits, wait)
	}
	m.ill = ""
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil || len(m.commands) != 1 || len(m.waits) != 1 {
		t.Errorf("available providers: %v, %q, %q", err, m.commands, m.waits)
	}
}
