package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestCAPI declares a cluster in a management cluster: Cluster API's own controllers and the infrastructure provider of
// provider/ make it on three hosts, from the bundle. The controllers are processes beside the hosts, at the API server of
// the management cluster, and no pods; the test makes the certificates of their webhooks in cert-manager's place. The
// provider's manager is killed again and again while hosts are provisioned.
func TestCAPI(t *testing.T) {
	const address = "10.250.0.11:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts: 4, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}}, standIns: []string{"cert-manager"},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"),
				"addons:\n  - chart: web\n    namespace: web\n    values: [web.yaml]\n", "")
		},
	})
	c := &capi{
		thread: th, registry: address, ca: ca, life: t.Context(), endpoint: th.lab.Hosts[1].Address, source: "file:///lab.kkb",
	}
	c.roles = func(number int) []string {
		if number == 2 {
			return []string{"control-plane"}
		}
		return []string{"worker"}
	}
	th.companyRegistry(t, 1, ca)
	th.makeBundle(t) // its cluster file names no registry of a site
	useCompanyRegistry(t, th.dir, address, ca)
	c.pristine = c.poolTraces(t)
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"Cluster API and the provider run", c.controllers},
		{"a pool of hosts", c.pool},
		{"a declared cluster comes up, and the manager is killed meanwhile", c.create},
		{"a MachineDeployment is scaled up and down", c.scale},
		{"a deleted cluster leaves its hosts as they were", c.delete},
		{"no packet left the hosts' network", th.packets},
	})
}

// capi is a management cluster, on host 1. The other hosts are its pool.
type capi struct {
	*thread
	// managers is the number of hosts before the pool, each a management cluster; 0 is one.
	managers int
	life     context.Context //nolint:containedctx // of the whole test: the controllers outlive their subtest
	registry string
	endpoint string // of the declared cluster
	source   string // of the KKBundle
	ca       *companyCA
	// roles of a host of the pool; nil gives each host both.
	roles func(number int) []string
	// flags of the provider's manager besides those that it needs.
	flags   []string
	inPlace bool // with the provider's Runtime Extension, and the features of Cluster API that it needs
	manager *process
	kills   int
}

// poolTraces are the traces of the hosts of the pool.
func (c *capi) poolTraces(t *testing.T) string {
	t.Helper()
	first := "== " + c.poolHosts()[0].Name + "\n"
	_, pool, ok := strings.Cut(c.traces(t), first)
	if !ok {
		t.Fatalf("there are no traces in %q", first)
	}
	return first + pool
}

// poolHosts are the hosts behind those of the management clusters.
func (c *capi) poolHosts() []hosts.Host { return c.lab.Hosts[max(c.managers, 1):] }

func (c *capi) install(t *testing.T) {
	c.pushToCompany(t, c.registry)
	c.installed(t)
}

// installed installs the management cluster that the inventory is of.
func (c *capi) installed(t *testing.T) {
	t.Helper()
	cmd := c.site(t, "install", "-c", filepath.Join(c.dir, "cluster.yaml"))
	cmd.Env = append(os.Environ(), "SITE_REGISTRY="+companyPassword)
	r := run(t, cmd).must(t, 0)
	t.Logf("install: %s", r.took.Round(time.Second))
}

// A process is a controller beside the hosts.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	args []string
}

// run starts a program where the hosts reach it, until the test's end. Its output is shown where the test fails.
func (c *capi) run(name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(c.dir, name+".log"), args: args}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	kubeconfig := filepath.Join(strings.TrimSuffix(c.lab.InventoryFile(), ".yaml")+".work", "admin.conf")
	p.cmd = c.lab.Command(c.life, args[0], append(slices.Clone(args[1:]), "--kubeconfig", kubeconfig)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), "POD_NAMESPACE=default")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = p.kill
	return p, p.cmd.Start()
}

// end kills the process with its children, as the end of its pod does, and waits for its end.
func (p *process) end() {
	_ = p.kill()
	_ = p.cmd.Wait()
}

func (p *process) kill() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// show prints the end of the log.
func (p *process) show(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(p.log)
	const most = 6000
	t.Logf("%s (%v):\n%s", p.name, err, data[max(0, len(data)-most):])
}

// The address of the processes beside the hosts.
const besideHosts = "10.250.0.1"

// A component is one of the four controllers.
type component struct {
	name, program, yaml string
	port                int // of the webhooks; the probes are 100 above
	args                []string
}

func (c *capi) controllers(t *testing.T) {
	made, err := software.BuildClusterAPI(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	manager := filepath.Join(top, "bin", "kkbundle-provider")
	if _, err := os.Stat(manager); err != nil {
		t.Fatalf("%v: run make e2e-capi", err)
	}
	own, err := os.ReadFile(filepath.Join(top, "provider/config/infrastructure-components.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(c.dir, "webhooks")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := c.ca.issue(t, "webhooks", besideHosts)
	write(t, certs, map[string]string{"tls.crt": string(cert), "tls.key": string(key)})
	c.serve(t, c.bundle(), "lab.kkb")
	upstream, extended := []string{"--diagnostics-address=0"}, []string{"--diagnostics-address=0"}
	if c.inPlace {
		extended = append(extended, "--feature-gates=RuntimeSDK=true,InPlaceUpdates=true")
	}
	components := []component{
		{"capi-core", made.Core, c.kustomize(t, made.Module, "core"), 9501, extended},
		{"capi-bootstrap", made.Bootstrap, c.kustomize(t, made.Module, "bootstrap/kubeadm"), 9502, upstream},
		{"capi-control-plane", made.ControlPlane, c.kustomize(t, made.Module, "controlplane/kubeadm"), 9503, extended},
		{"kkbundle-provider", manager, string(own), 9504, append([]string{
			"--kkbundle", c.kkbundle, "--bundles", c.bundles(), "--scratch", filepath.Join(c.dir, "scratch"), "-v", "2",
			fmt.Sprintf("--extension-port=%d", extensionPort),
		}, c.flags...)},
	}
	for _, one := range components {
		c.feed(t, c.adminHost(), kubectlApply, strings.NewReader(c.beside(t, one.yaml, one.port)))
	}
	for _, one := range components {
		args := append([]string{
			one.program, fmt.Sprintf("--webhook-port=%d", one.port), "--webhook-cert-dir=" + certs,
			fmt.Sprintf("--health-addr=:%d", one.port+100),
		}, one.args...)
		p, err := c.run(one.name, args...)
		if err != nil {
			t.Fatal(err)
		}
		if one.program == manager {
			c.manager = p
		}
	}
	for _, one := range components {
		c.waitFor(t, 3*time.Minute, one.name+" is ready", 1,
			fmt.Sprintf("curl -sf http://%s:%d/readyz", besideHosts, one.port+100))
	}
	if !c.inPlace {
		return
	}
	// In a pod, the manager names its Service here.
	c.feed(t, c.adminHost(), kubectlApply, strings.NewReader(text(t, map[string]any{
		"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": map[string]any{"name": "kkbundle-provider"},
		"spec": map[string]any{"clientConfig": map[string]any{
			"url": fmt.Sprintf("https://%s:%d", besideHosts, extensionPort), "caBundle": base64.StdEncoding.EncodeToString(c.ca.pem),
		}},
	})))
	c.waitFor(t, time.Minute, "Cluster API knows the extension", 1,
		in("kubectl wait --for=condition=Discovered --timeout=1s extensionconfig/kkbundle-provider"))
}

// extensionPort is that of the provider's Runtime Extension.
const extensionPort = 9505

// bundles is the provider's directory of bundles.
func (c *capi) bundles() string { return filepath.Join(c.dir, "bundles") }

// serve puts a bundle where the provider finds it as file:///NAME.
func (c *capi) serve(t *testing.T, bundle, name string) {
	t.Helper()
	site := filepath.Join(c.bundles(), "site")
	if err := errors.Join(os.MkdirAll(site, 0o700), os.Link(bundle, filepath.Join(site, name))); err != nil {
		t.Fatal(err)
	}
}

const kubectlApply = "KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf apply --server-side -f -"

// kustomize returns the components of a controller as its makers publish them.
func (c *capi) kustomize(t *testing.T, module, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.bin, "kubectl"), "kustomize", filepath.Join(module, dir,
		"config", "default"))
	return run(t, cmd).must(t, 0).stdout
}

// beside makes components those of a process beside the hosts: without Deployments, Services and certificates, and with
// the process's address in place of the Service's.
func (c *capi) beside(t *testing.T, components string, port int) string {
	t.Helper()
	var out strings.Builder
	for _, object := range objectsOf(t, components) {
		switch object["kind"] {
		case "Deployment", "Service", "Issuer", "Certificate":
			continue
		}
		c.redirect(object, port)
		out.WriteString("---\n" + text(t, object))
	}
	return out.String()
}

func (c *capi) redirect(value any, port int) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			c.redirect(one, port)
		}
	case map[string]any:
		if service, ok := v["service"].(map[string]any); ok && service["path"] != nil {
			delete(v, "service")
			v["url"] = fmt.Sprintf("https://%s:%d%s", besideHosts, port, service["path"])
			v["caBundle"] = base64.StdEncoding.EncodeToString(c.ca.pem)
			return
		}
		for _, one := range v {
			c.redirect(one, port)
		}
	}
}

func objectsOf(t *testing.T, manifest string) (objects []map[string]any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(manifest))
	for {
		var object map[string]any
		err := d.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
}

func text(t *testing.T, object any) string {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// pool declares the hosts of the pool.
func (c *capi) pool(t *testing.T) {
	read := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	secret := func(name string, data map[string]string) map[string]any {
		return map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name}, "stringData": data,
		}
	}
	objects := []map[string]any{
		secret("login", map[string]string{
			"ssh-privatekey": read(c.lab.KeyFile()),
			"sudo-password":  strings.TrimSpace(read(filepath.Join(c.lab.State, "sudo-password"))),
		}),
		secret("host-keys", map[string]string{"known_hosts": read(c.lab.KnownHostsFile())}),
		secret("registry", map[string]string{
			"username": companyUser, "password": companyPassword, "ca.crt": string(c.ca.pem),
		}),
		kkBundle("site", c.source),
	}
	for _, h := range c.poolHosts() {
		spec := map[string]any{
			"address": h.Address,
			"ssh": map[string]any{
				"user": "ops", "secretRef": map[string]any{"name": "login"},
				"knownHostsRef": map[string]any{"name": "host-keys"},
			},
		}
		if c.roles != nil {
			spec["roles"] = c.roles(h.Number)
		}
		objects = append(objects, map[string]any{
			"apiVersion": infrastructure, "kind": "KKHost", "metadata": map[string]any{"name": h.Name}, "spec": spec,
		})
	}
	c.kubectl(t, "create namespace site")
	c.apply(t, objects)
	c.until(t, 2*time.Minute, "every host is free, and the bundle is read", c.free(len(c.poolHosts()))+` &&
		kubectl get kkbundle site -o jsonpath='{.status.versions}' | grep `+software.KubernetesVersion)
}

// kkBundle declares a bundle: one that serve has put there, or one of the site's registry.
func kkBundle(name, source string) map[string]any {
	spec := map[string]any{"source": source}
	if strings.HasPrefix(source, "oci://") {
		spec["secretRef"] = map[string]any{"name": "registry"}
	}
	return map[string]any{
		"apiVersion": infrastructure, "kind": "KKBundle", "metadata": map[string]any{"name": name}, "spec": spec,
	}
}

// free is a shell line that holds while this many hosts are free.
func (*capi) free(hosts int) string {
	return fmt.Sprintf(`kubectl get kkhosts -o jsonpath='{range .items[*]}{.status.state}{"\n"}{end}' | grep -c Available | grep -x %d`,
		hosts)
}

const infrastructure = "infrastructure.kkbundle.io/v1alpha1"

// apply applies objects in the namespace site.
func (c *capi) apply(t *testing.T, objects []map[string]any) {
	t.Helper()
	var all strings.Builder
	for _, o := range objects {
		all.WriteString("---\n" + text(t, o))
	}
	c.feed(t, c.adminHost(), kubectlApply+" -n site", strings.NewReader(all.String()))
}

// in makes kubectl of a shell line speak to the management cluster's namespace site.
func in(line string) string {
	return "kubectl() { KUBECACHEDIR=/tmp/kubectl command kubectl --kubeconfig /etc/kubernetes/admin.conf -n site \"$@\"; }; " + line
}

// until waits for a shell line to succeed, and shows the objects and the logs if it does not.
func (c *capi) until(t *testing.T, limit time.Duration, what, line string) {
	t.Helper()
	begin := time.Now()
	for time.Since(begin) < limit {
		cmd := c.lab.SSH(t.Context(), c.lab.Hosts[c.adminHost()-1], in(line))
		if _, err := cmd.CombinedOutput(); err == nil {
			return
		}
		time.Sleep(3 * time.Second)
	}
	t.Log(c.on(t, c.adminHost(), in("kubectl get cluster,kubeadmcontrolplane,machinedeployment,machine,kkhosts,kkmachines,kkinstances,kkbundles -o wide; kubectl get kkinstances,kkclusters,kkhosts,machine -o yaml | grep -A2 -B6 'message:' | head -n 300; true")))
	if c.manager == nil {
		t.Log(c.on(t, c.adminHost(), "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kkbundle-provider-system logs deployment/kkbundle-provider --tail=100; true"))
	}
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	for _, file := range logs {
		(&process{name: filepath.Base(file), log: file}).show(t)
	}
	t.Fatalf("%s: not within %s", what, limit)
}

// create declares the cluster by the provider's template, and kills the manager while it comes up.
func (c *capi) create(t *testing.T) {
	begin := time.Now()
	c.apply(t, c.declared(t, 1))
	stop := c.killing(t)
	defer stop()
	c.answers(t, begin)
	c.podNetwork(t)
	c.until(t, 10*time.Minute, "two Machines are up", `kubectl get kkinstances -o jsonpath='{range .items[*]}{.status.state}{"\n"}{end}' | grep -c Running | grep -x 2`)
	stop()
	c.until(t, 5*time.Minute, "both Machines are Ready", `kubectl wait --for=condition=Ready --timeout=1s machine --all && kubectl get machine --no-headers | wc -l | grep -x 2`)
	c.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
	t.Logf("the cluster is available after %s; the manager was killed %d times", time.Since(begin).Round(time.Second), c.kills)
	t.Log(c.on(t, c.adminHost(), in("kubectl get cluster,machine,kkinstances -o wide; kubectl --kubeconfig /root/prod.conf get nodes -o wide")))
	if c.kills == 0 {
		t.Error("the manager was never killed")
	}
}

// answers waits for the API server of the declared cluster, and keeps its kubeconfig on host 1.
func (c *capi) answers(t *testing.T, begin time.Time) {
	t.Helper()
	c.until(t, 12*time.Minute, "the API server of the cluster", `kubectl get secret prod-kubeconfig -o jsonpath='{.data.value}' | base64 -d > /root/prod.conf && kubectl get --raw /readyz --kubeconfig /root/prod.conf`)
	t.Logf("the API server of the cluster answers after %s", time.Since(begin).Round(time.Second))
}

// killEvery is longer than kubeadm takes for a node, since a killed kubeadm means that the host is cleaned, and than the
// minute for which a host may keep the lock of a lost run.
const killEvery = 2 * time.Minute

// killing kills the manager again and again, until the returned function is called.
func (c *capi) killing(t *testing.T) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-done:
				ended <- nil
				return
			case <-time.After(killEvery):
			}
			if err := c.kill(); err != nil {
				ended <- err
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// kill kills the manager with its children, and starts it again.
func (c *capi) kill() error {
	c.manager.end()
	c.kills++
	next, err := c.run(c.manager.name, c.manager.args...)
	if err == nil {
		c.manager = next
	}
	return err
}

// podNetwork gives the cluster the pod network of the management cluster, as nobody else does: a copy of flannel's
// objects, whose daemon takes the interface of the address that its host has.
func (c *capi) podNetwork(t *testing.T) {
	t.Helper()
	names := "namespace/kube-flannel serviceaccount,configmap,daemonset clusterrole/flannel clusterrolebinding/flannel"
	var all strings.Builder
	for _, name := range strings.Fields(names) {
		out := c.kubectl(t, "get -n kube-flannel -o yaml "+name)
		for _, object := range objectsOf(t, out) {
			list, ok := object["items"].([]any)
			if !ok {
				list = []any{object}
			}
			for _, one := range list {
				o := one.(map[string]any)
				meta := o["metadata"].(map[string]any)
				if meta["name"] == "default" || meta["name"] == "kube-root-ca.crt" {
					continue
				}
				kept := map[string]any{"name": meta["name"]}
				for _, key := range []string{"namespace", "labels"} {
					if meta[key] != nil {
						kept[key] = meta[key]
					}
				}
				o["metadata"] = kept
				delete(o, "status")
				all.WriteString("---\n" + text(t, o))
			}
		}
	}
	ofHost := "--iface=" + addresses(c.lab.Hosts[:1])[0]
	var ofAll []string
	for _, address := range addresses(c.poolHosts()) {
		ofAll = append(ofAll, "--iface="+address)
	}
	line := regexp.MustCompile(`(?m)^( *- )` + regexp.QuoteMeta(ofHost) + `$`)
	if !line.MatchString(all.String()) {
		t.Fatalf("flannel's daemon has no %s", ofHost)
	}
	c.applyThere(t, line.ReplaceAllStringFunc(all.String(), func(one string) string {
		before := strings.TrimSuffix(one, ofHost)
		return before + strings.Join(ofAll, "\n"+before)
	}))
}

// applyThere applies a manifest in the declared cluster.
func (c *capi) applyThere(t *testing.T, manifest string) {
	t.Helper()
	c.feed(t, c.adminHost(), strings.Replace(kubectlApply, "/etc/kubernetes/admin.conf", "/root/prod.conf", 1),
		strings.NewReader(manifest))
}

var templateVariable = regexp.MustCompile(`\$\{([A-Z_]+)(?::=([^}]*))?\}`)

// declared is the provider's template for a cluster, filled in as clusterctl does, and changed for the lab.
func (c *capi) declared(t *testing.T, controlPlanes int) []map[string]any {
	t.Helper()
	data, err := os.ReadFile("../../../provider/templates/cluster-template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{
		"CLUSTER_NAME": "prod", "CONTROL_PLANE_ENDPOINT": c.endpoint, "REGISTRY": c.registry,
		"KUBERNETES_VERSION": software.KubernetesVersion, "CONTROL_PLANE_MACHINE_COUNT": strconv.Itoa(controlPlanes),
	}
	filled := templateVariable.ReplaceAllStringFunc(string(data), func(one string) string {
		m := templateVariable.FindStringSubmatch(one)
		if v, ok := values[m[1]]; ok {
			return v
		}
		return m[2]
	})
	return forLab(objectsOf(t, filled))
}

// added appends to a list of an object.
func added(spec map[string]any, list string, more ...any) {
	have, _ := spec[list].([]any)
	spec[list] = append(have, more...)
}

// forLab changes the objects of a cluster for hosts with control groups of version 1, whose limits of connections
// kube-proxy cannot set.
func forLab(objects []map[string]any) []map[string]any {
	for _, o := range objects {
		spec := o["spec"].(map[string]any)
		switch o["kind"] {
		case "KubeadmControlPlane":
			spec = spec["kubeadmConfigSpec"].(map[string]any)
			added(spec, "preKubeadmCommands", "cat /etc/kubernetes/proxy.yaml >> /run/kubeadm/kubeadm.yaml")
		case "KubeadmControlPlaneTemplate":
			spec = spec["template"].(map[string]any)["spec"].(map[string]any)["kubeadmConfigSpec"].(map[string]any)
			added(spec, "preKubeadmCommands", "cat /etc/kubernetes/proxy.yaml >> /run/kubeadm/kubeadm.yaml")
		case "KubeadmConfigTemplate":
			spec = spec["template"].(map[string]any)["spec"].(map[string]any)
		default:
			continue
		}
		added(spec, "files", map[string]any{
			"path": "/etc/kubernetes/patches/kubeletconfiguration+merge.json", "permissions": "0600",
			"content": `{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": false}`,
		}, map[string]any{
			"path": "/etc/kubernetes/proxy.yaml", "permissions": "0600",
			"content": "---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
				"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n",
		})
		for _, kind := range []string{"initConfiguration", "joinConfiguration"} {
			configuration, ok := spec[kind].(map[string]any)
			if !ok {
				continue
			}
			configuration["patches"] = map[string]any{"directory": "/etc/kubernetes/patches"}
			configuration["nodeRegistration"].(map[string]any)["ignorePreflightErrors"] = []string{"SystemVerification"}
		}
	}
	return objects
}

// scale adds a worker and removes one. The host of the removed one is as it was.
func (c *capi) scale(t *testing.T) {
	begin := time.Now()
	defer c.killing(t)()
	c.on(t, c.adminHost(), in("kubectl scale machinedeployment prod-md-0 --replicas=2"))
	c.until(t, 15*time.Minute, "three Machines are Ready", `kubectl get machine --no-headers | wc -l | grep -x 3 && kubectl wait --for=condition=Ready --timeout=1s machine --all`)
	t.Logf("a worker more after %s", time.Since(begin).Round(time.Second))
	c.on(t, c.adminHost(), in("kubectl scale machinedeployment prod-md-0 --replicas=1"))
	c.until(t, 10*time.Minute, "a host is free again", `kubectl get machine --no-headers | wc -l | grep -x 2 && `+c.free(1))
	c.freeAreClean(t, 1)
}

// freeAreClean checks that this many hosts are free, and as they were.
func (c *capi) freeAreClean(t *testing.T, want int) {
	t.Helper()
	free := strings.Fields(c.on(t, c.adminHost(), in(`kubectl get kkhosts -o jsonpath='{range .items[*]}{.metadata.name}{" "}{.status.state}{"\n"}{end}' | awk '$2 == "Available" {print $1}'`)))
	if len(free) != want {
		t.Fatalf("free: %q", free)
	}
	of := func(all, name string) string {
		_, part, _ := strings.Cut(all, "== "+name+"\n")
		part, _, _ = strings.Cut(part, "== host")
		return part
	}
	now := c.poolTraces(t)
	for _, name := range free {
		if before, after := of(c.pristine, name), of(now, name); before != after {
			t.Errorf("%s is not as it was:\n%s", name, difference(before, after))
		}
	}
}

func (c *capi) delete(t *testing.T) {
	begin := time.Now()
	stop := c.killing(t)
	defer stop()
	c.on(t, c.adminHost(), in("kubectl delete cluster prod --wait=false"))
	c.until(t, 15*time.Minute, "the cluster is gone, and every host is free", `[ -z "$(kubectl get cluster,machine,kkmachines,kkinstances --no-headers 2>/dev/null)" ] && `+
		c.free(len(c.poolHosts())))
	stop()
	t.Logf("gone after %s; the manager was killed %d times in all", time.Since(begin).Round(time.Second), c.kills)
	if after := c.poolTraces(t); after != c.pristine {
		t.Errorf("hosts are not as they were:\n%s", difference(c.pristine, after))
	}
}
