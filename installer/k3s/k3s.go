package installer

import (
	"context"
	_ "embed" // scripts
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

const (
	k3sProgram    = "k3s"
	k3sBinary     = "/usr/local/bin/k3s"
	k3sDir        = "/etc/rancher/k3s"
	k3sConfigFile = k3sDir + "/config.yaml"
	k3sTokenFile  = k3sDir + "/token"
	k3sAgentToken = k3sDir + "/agent-token"
	k3sKubeconfig = k3sDir + "/k3s.yaml"
	k3sData       = "/var/lib/rancher/k3s"
	// k3sCA is the authority that a node of k3s trusts; servers run an agent, too.
	k3sCA = k3sData + "/agent/server-ca.crt"
	// k3sServerToken is what a server writes: how others know it, and what they prove themselves with.
	k3sServerToken = k3sData + "/server/token"
	k3sStart       = 5 * time.Minute

	// Names in the work directory.
	k3sTokenSecret      = "k3s/token"
	k3sAgentTokenSecret = "k3s/agent-token"
)

// k3sDistribution is k3s: the runtime, the kubelet and the control plane in one program.
func k3sDistribution() clusterDistribution {
	return clusterDistribution{
		authority:       k3sCA,
		kubectl:         []string{k3sProgram, "kubectl", "--kubeconfig=" + k3sKubeconfig},
		ownImages:       true,
		parents:         []string{k3sData, path.Dir(k3sData), path.Dir(k3sDir)},
		nodes:           k3sTasks,
		dns:             func(*manifest.Cluster) []Task { return nil }, // it has one pod
		hardening:       func(*manifest.Cluster) (before, after []Task) { return nil, nil },
		services:        k3sServices,
		verifies:        k3sVerifies,
		refuses:         k3sRefuses,
		adminKubeconfig: k3sAdminKubeconfig,
		quorumWithout:   k3sWithout,
		keepDown:        keepK3sDown,
	}
}

// k3sRuntime is the containerd that k3s brings. https://docs.k3s.io/advanced
func k3sRuntime() podRuntime {
	return podRuntime{
		name: "k3s", socket: "unix:///run/k3s/containerd/containerd.sock", data: k3sData,
		images: containerdImages{ctr: []string{k3sProgram, "ctr"}},
	}
}

// k3sTasks make nodes out of hosts: servers one by one, because each becomes a member of etcd, then agents.
func k3sTasks(c *manifest.Cluster) []Task {
	return slices.Concat(
		[]Task{
			k3sTask(c, "k3s-server", OneByOne, manifest.RoleControlPlane),
			apiTask(),
			k3sTask(c, "k3s-agent", Each, manifest.RoleWorker),
		},
		preloadTasks(c),
		[]Task{labelTask(), adminConfTask()},
	)
}

// k3sServices returns the cluster without the services that k3s has in itself: metrics-server and local storage.
func k3sServices(c *manifest.Cluster) *manifest.Cluster {
	d := *c
	d.Metrics, d.Storage.Local = false, false
	return &d
}

// k3sVerifies leaves out of a cluster's checks those that k3s has no place for: it has no CoreDNS of the catalog's, whose pods prove
// the network of other clusters, and nothing of kubeadm's.
func k3sVerifies(tasks []Task) []Task {
	return slices.DeleteFunc(tasks, func(t Task) bool {
		return !slices.Contains([]string{"verify-nodes", "verify-pods", "verify-cluster", "verify-dns", "verify-images", "verify-result"}, t.Name)
	})
}

// k3sTask installs k3s on the hosts of a role. What k3s runs by itself comes out of its own archive of images, which it
// reads when it starts.
func k3sTask(c *manifest.Cluster, name string, where Where, role manifest.Role) Task {
	files := []Place{
		{"k3s", "", k3sBinary, executable},
		{"k3s-images", "", k3sData + "/agent/images/k3s-airgap-images.tar.zst", 0o644},
	}
	if !c.BringsNetwork() {
		files = append(files, pluginFiles()...)
	}
	unit := k3sUnit(role == manifest.RoleControlPlane)
	task := settle(Task{
		Name:     name,
		Roles:    []manifest.Role{role},
		Where:    where,
		Files:    files,
		Packages: nodePackages(),
		Leaves: Leaves{
			Units: []string{unit},
			Paths: []string{path.Dir(k3sLeaving), k3sDir, k3sData + "/agent", k3sData + "/data", k3sData + "/server", "/etc/rancher/node", "/run/k3s"},
			// Volumes of pods.
			Data: []string{k3sData + "/storage"},
			Undo: undoAll(
				func(ctx context.Context, t *Target) error { return t.removeK3sLinks(ctx) },
				dropSets("KUBE-"), dropSets("inet6:KUBE-"), // of k3s' own network policies
			),
		},
	}, func(ctx context.Context, t *Target) (setting, error) {
		return t.k3sSetting(ctx, unit)
	})
	isServer := func(t *Target) bool { return t.Is(manifest.RoleControlPlane) }
	done, do := task.Done, task.Do
	task.Done = func(ctx context.Context, t *Target) (bool, error) {
		if role == manifest.RoleWorker && isServer(t) {
			return true, nil // a server is an agent, too
		}
		member, err := t.isMember(ctx)
		if err != nil || !member {
			return false, err
		}
		return done(ctx, t)
	}
	task.Do = func(ctx context.Context, t *Target) error {
		if err := do(ctx, t); err != nil {
			return err
		}
		return t.write(ctx, t.run.memberFile())
	}
	return task
}

// k3sUnit is the unit that k3s' own install script makes for a role.
func k3sUnit(server bool) string {
	if server {
		return "k3s.service"
	}
	return "k3s-agent.service"
}

func (t *Target) k3sSetting(ctx context.Context, unit string) (setting, error) {
	server := t.Is(manifest.RoleControlPlane)
	tokens, err := t.k3sTokens(ctx, server)
	if err != nil {
		return setting{}, err
	}
	config, more, err := t.k3sConfig(ctx, server)
	if err != nil {
		return setting{}, err
	}
	data, err := kube.Documents(config)
	if err != nil {
		return setting{}, err
	}
	command := "agent"
	if server {
		command = "server"
	}
	files := slices.Concat(tokens, more, []textFile{
		{k3sConfigFile, 0o600, append([]byte(hostfile.Mark+"\n"), data...)},
		{"/etc/systemd/system/" + unit, 0o644, fmt.Appendf(nil, k3sUnitText, command)},
	})
	registry, err := t.run.k3sRegistry()
	if err != nil {
		return setting{}, err
	}
	return setting{
		files: append(files, registry...),
		apply: func(ctx context.Context, t *Target) error { return t.startK3s(ctx, unit) },
		holds: func(ctx context.Context, t *Target) (bool, error) {
			return t.test(ctx, "systemctl", "is-active", "--quiet", unit)
		},
		ready: func(ctx context.Context, t *Target) error { return t.k3sJoined(ctx, unit) },
	}, nil
}

// k3sConfig are the flags of k3s, by name, and files that they refer to. https://docs.k3s.io/cli/server
func (t *Target) k3sConfig(ctx context.Context, server bool) (document, []textFile, error) {
	c := t.run.cluster
	d := document{
		"node-name":   t.Name,
		"node-ip":     t.IP.String(),
		"kubelet-arg": k3sKubelet(c),
		"token-file":  k3sTokenFile,
		// Without it k3s asks the upstream for what the registry lacks.
		"disable-default-registry-endpoint": true,
	}
	if c.Kubernetes.ProxyMode != manifest.ProxyIPTables {
		d["kube-proxy-arg"] = []any{"proxy-mode=" + string(c.Kubernetes.ProxyMode)}
	}
	if c.BringsNetwork() {
		link, err := t.linkOf(ctx)
		if err != nil {
			return nil, nil, err
		}
		d["flannel-iface"] = link
	}
	// The policy that k3s needs under SELinux comes with the package k3s-selinux; without it k3s has to leave SELinux alone.
	policy, err := t.test(ctx, "test", "-e", "/usr/share/selinux/packages/k3s.pp")
	if err != nil {
		return nil, nil, err
	}
	if policy {
		d["selinux"] = true
	}
	if !server {
		d["server"] = "https://" + t.run.endpoint()
		return d, nil, nil
	}
	return t.k3sServerConfig(d)
}

// k3sKubelet are the flags of the kubelet.
func k3sKubelet(c *manifest.Cluster) []any {
	flags := []any{"max-pods=" + strconv.Itoa(c.Kubernetes.MaxPods)}
	if c.DNS.NodeLocal && !takesServiceAddress(c) {
		// k3s' own cluster-dns is the address of CoreDNS, too.
		flags = append(flags, "cluster-dns="+nodeDNSAddress)
	}
	return flags
}

// k3sServerConfig adds what servers are told.
func (t *Target) k3sServerConfig(d document) (document, []textFile, error) {
	c := t.run.cluster
	host, _, err := net.SplitHostPort(t.run.endpoint())
	if err != nil {
		return nil, nil, err
	}
	disabled := []any{"traefik", "servicelb"}
	if !c.Metrics {
		disabled = append(disabled, "metrics-server")
	}
	if !c.Storage.Local {
		disabled = append(disabled, "local-storage")
	}
	for name, value := range (document{
		"agent-token-file":      k3sAgentToken,
		"advertise-address":     t.IP.String(),
		"cluster-cidr":          c.Kubernetes.PodCIDR.String(),
		"service-cidr":          c.Kubernetes.ServiceCIDR.String(),
		"cluster-dns":           nth(c.Kubernetes.ServiceCIDR[0], dnsServiceIndex).String(),
		"cluster-domain":        clusterDomain,
		"disable":               disabled,
		"tls-san":               []any{host},
		"write-kubeconfig-mode": "0600",
	}) {
		d[name] = value
	}
	if !c.BringsNetwork() {
		d["flannel-backend"], d["disable-network-policy"] = "none", true
	}
	if masks := maskFlags(c); len(masks) > 0 {
		var flags []any
		for _, name := range slices.Sorted(maps.Keys(masks)) {
			flags = append(flags, name+"="+masks[name])
		}
		d["kube-controller-manager-arg"] = flags
	}
	if !t.Is(manifest.RoleWorker) {
		d["node-taint"] = []any{"node-role.kubernetes.io/control-plane=true:NoSchedule"} // as kubeadm has it
	}
	if c.Etcd.Type == manifest.EtcdProvided {
		files, err := t.run.k3sDatastore(d)
		return d, files, err
	}
	if t == t.run.firstControlPlane() {
		d["cluster-init"] = true // etcd, and not the SQLite that no second server can join
	} else {
		d["server"] = "https://" + t.run.endpoint()
	}
	return d, nil, nil
}

// k3sDatastore makes an etcd of the user's the store.
func (r *Site) k3sDatastore(d document) ([]textFile, error) {
	e := r.cluster.Etcd
	d["datastore-endpoint"] = strings.Join(e.Endpoints, ",")
	var files []textFile
	for _, f := range []struct{ flag, from, name string }{
		{"datastore-cafile", e.CA, "ca.crt"}, {"datastore-certfile", e.Cert, "client.crt"}, {"datastore-keyfile", e.Key, "client.key"},
	} {
		data, err := r.Values(f.from)
		if err != nil {
			return nil, fmt.Errorf("etcd of your own: %w", err)
		}
		to := path.Join(k3sDir, "datastore", f.name)
		d[f.flag] = to
		files = append(files, textFile{to, 0o600, data})
	}
	return files, nil
}

// k3sRegistry makes k3s' containerd pull from the registry.
func (r *Site) k3sRegistry() ([]textFile, error) {
	if r.cluster.ImageRegistry.Type == manifest.RegistryNone {
		return nil, nil
	}
	access, err := r.access()
	if err != nil {
		return nil, err
	}
	return mirrorFiles(mirror.RuntimeK3s, access, r.upstreams())
}

// k3sTokens are what nodes join with, made once in the work directory. What joins also gets the pin of the cluster's
// authority, from the first server itself: with the bare secret k3s would trust whoever answers. Agents have a token of
// their own, with which nobody becomes a server.
func (t *Target) k3sTokens(ctx context.Context, server bool) ([]textFile, error) {
	r := t.run
	secret, err := r.dir.secret(k3sTokenSecret)
	if err != nil {
		return nil, err
	}
	agents, err := r.dir.secret(k3sAgentTokenSecret)
	if err != nil {
		return nil, err
	}
	r.mask.hide(secret)
	r.mask.hide(agents)
	own := secret
	if first := r.firstControlPlane(); t != first {
		pin, err := first.k3sPin(ctx)
		if err != nil {
			return nil, err
		}
		if own = pin + "::server:" + secret; !server {
			own = pin + "::node:" + agents
		}
	}
	files := []textFile{{k3sTokenFile, 0o600, []byte(own + "\n")}}
	if server {
		files = append(files, textFile{k3sAgentToken, 0o600, []byte(agents + "\n")})
	}
	return files, nil
}

// k3sPin returns the beginning of the first server's token: the version of the format, and the hash of the authority.
func (t *Target) k3sPin(ctx context.Context) (string, error) {
	data, err := t.read(ctx, k3sServerToken)
	if err != nil {
		return "", fmt.Errorf("the first server's token: %w", err)
	}
	pin := regexp.MustCompile(`^K10[0-9a-f]{64}`).FindString(string(data))
	if pin == "" {
		return "", fmt.Errorf("%s on %s does not begin with K10 and a hash, as k3s writes it", k3sServerToken, t.Name)
	}
	return pin, nil
}

// linkOf returns the interface that has the node's address.
func (t *Target) linkOf(ctx context.Context) (string, error) {
	out, err := t.output(ctx, "ip", "-oneline", "address", "show", "to", t.IP.String())
	if err != nil {
		return "", err
	}
	const index, name = 0, 1 // "2: eth0    inet 10.0.0.3/24 ..."
	fields := strings.Fields(string(out))
	if len(fields) <= name || !strings.HasSuffix(fields[index], ":") {
		return "", fmt.Errorf("no interface of %s has the address %s", t.Name, t.IP)
	}
	return fields[name], nil
}

// startK3s starts k3s without waiting for it: a server that finds no others, or an agent without a server, never says that
// it is ready.
func (t *Target) startK3s(ctx context.Context, unit string) error {
	for _, name := range k3sLinks() {
		there, err := t.test(ctx, "test", "-e", name)
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if err := t.command(ctx, "ln", "-sfn", k3sProgram, name); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unit}, {"restart", "--no-block", unit}} {
		if err := t.systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// k3sLinks are the programs that k3s is under other names.
func k3sLinks() []string {
	return []string{"/usr/local/bin/kubectl", "/usr/local/bin/crictl", "/usr/local/bin/ctr"}
}

// removeK3sLinks leaves programs of others alone.
func (t *Target) removeK3sLinks(ctx context.Context) error {
	for _, name := range k3sLinks() {
		link, err := t.test(ctx, "test", "-L", name)
		if err != nil {
			return err
		}
		if !link {
			continue
		}
		to, err := t.output(ctx, "readlink", name)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(to)) != k3sProgram {
			continue
		}
		if err := t.command(ctx, "rm", "-f", name); err != nil {
			return err
		}
	}
	return nil
}

// k3sJoined waits until the host is a node, as a server sees it: a server asks itself.
func (t *Target) k3sJoined(ctx context.Context, unit string) error {
	asked := t
	if !t.Is(manifest.RoleControlPlane) {
		asked = t.run.firstControlPlane()
	}
	err := eventually(ctx, k3sStart, func(ctx context.Context) error {
		if _, err := asked.kubectl(ctx, "get", "node", t.Name, "--output=name"); err != nil {
			return err
		}
		return t.systemctl(ctx, "is-active", "--quiet", unit)
	})
	if err != nil {
		return t.withUnitLog(ctx, unit, err)
	}
	return nil
}

// k3sUnitText is as k3s' install.sh writes it (create_systemd_service_file).
const k3sUnitText = hostfile.Mark + `
[Unit]
Description=Lightweight Kubernetes
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/%%N
EnvironmentFile=-/etc/sysconfig/%%N
EnvironmentFile=-/etc/systemd/system/%%N.service.env
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=` + k3sBinary + ` %s
KillMode=process
Delegate=yes
User=root
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s

[Install]
WantedBy=multi-user.target
`

//go:embed scripts/kill-pods.sh
var killPodsScript string

// stopK3s stops k3s and everything that it runs, as its k3s-killall.sh does: stopping the unit leaves pods alone.
func (t *Target) stopK3s(ctx context.Context) error {
	stopped := false
	for _, unit := range []string{k3sUnit(true), k3sUnit(false)} {
		file, err := t.read(ctx, "/etc/systemd/system/"+unit)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.HasPrefix(string(file), hostfile.Mark) {
			continue // none, or somebody else's
		}
		if err != nil {
			return err
		}
		stopped = true
		for _, args := range [][]string{{"stop", "--no-block", unit}, {"kill", "--signal=KILL", unit}, {"stop", unit}} {
			if _, err := t.test(ctx, append([]string{"systemctl"}, args...)...); err != nil {
				return err
			}
		}
	}
	if !stopped {
		return nil
	}
	if _, err := t.test(ctx, "systemctl", "stop", "kubepods.slice"); err != nil {
		return err
	}
	if _, err := t.test(ctx, host.Script("kill-pods.sh", killPodsScript, "/sys/fs/cgroup")...); err != nil {
		return err
	}
	return t.unmount(ctx, "/run/k3s/", k3sData+"/", "/run/netns/cni-")
}

// k3sLeaving keeps a server that leaves from starting again, until the host's next boot.
const k3sLeaving = "/run/systemd/system/k3s.service.d/kkbundle-leaving.conf"

// keepK3sDown is for a server whose node is about to be deleted. The others take it out of etcd then; it ends, and would come
// back as a new member before its host is reset.
// https://github.com/k3s-io/k3s/blob/v1.34.3%2Bk3s1/pkg/etcd/member_controller.go
func keepK3sDown(ctx context.Context, t *Target) error {
	if !t.Is(manifest.RoleControlPlane) || t.on == nil || t.failure != nil {
		return nil
	}
	if err := t.write(ctx, textFile{k3sLeaving, 0o644, []byte(hostfile.Mark + "\n[Service]\nRestart=no\n")}); err != nil {
		return err
	}
	return t.systemctl(ctx, "daemon-reload")
}

// k3sWithout is quorumWithout for k3s' own etcd, which is part of its servers: a member works if its node does.
func k3sWithout(ctx context.Context, r *Site, going []*Target) error {
	nodes, err := r.firstControlPlane().kube().Nodes(ctx)
	if err != nil {
		return err
	}
	left, leaves, ill := 0, false, []string{}
	for _, n := range nodes {
		if _, is := n.Labels["node-role.kubernetes.io/etcd"]; !is {
			continue
		}
		switch name := n.Name; {
		case slices.ContainsFunc(going, func(t *Target) bool { return t.Name == name }):
			leaves = true
		case kube.IsNodeReady(&n):
			left++
		default:
			left, ill = left+1, append(ill, name)
		}
	}
	if !leaves || left-len(ill) > left/2 {
		return nil
	}
	return tooFewLeft(going[0], left, ill)
}

// A K3sError is a command that is for clusters of kubeadm only.
type K3sError struct{ Command, Instead string }

// Error names the command.
func (e *K3sError) Error() string {
	return e.Command + " is for clusters that kubeadm has made, and this one is k3s"
}

// Hint says what to do instead.
func (e *K3sError) Hint() string { return e.Instead }

// k3sRefuses names, for a command of kubeadm's clusters, the one of k3s.
func k3sRefuses(command string) error {
	instead, refused := map[string]string{
		etcdCommand:        "k3s saves its etcd by itself; k3s etcd-snapshot, on a server, saves it now, and k3s server --cluster-reset restores it",
		certsRenewCommand:  "k3s renews what ends soon when it starts; k3s certificate rotate, on a server that is stopped, renews all",
		certsBackupCommand: "keep /var/lib/rancher/k3s/server/tls and /var/lib/rancher/k3s/server/token of a server, and k3s/ of the work directory",
	}[command]
	if !refused {
		return nil
	}
	return &K3sError{command, instead}
}

// k3sAdminKubeconfig returns the administrator's kubeconfig. k3s' own names the host itself as the server, and is made to name the
// cluster's endpoint.
func k3sAdminKubeconfig(ctx context.Context, t *Target) ([]byte, error) {
	data, err := t.read(ctx, k3sKubeconfig)
	if err != nil {
		return nil, err
	}
	if err := checkKubeconfig(data); err != nil {
		return nil, err
	}
	var config document
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", k3sKubeconfig, err)
	}
	clusters, _ := config["clusters"].([]any)
	for _, one := range clusters {
		if named, ok := one.(document); ok {
			if c, ok := named["cluster"].(document); ok {
				c["server"] = "https://" + t.run.endpoint()
			}
		}
	}
	return yaml.Marshal(config)
}
