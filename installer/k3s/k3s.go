package k3s

import (
	"context"
	_ "embed"
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

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

// Files of k3s on a host.
const (
	Binary         = "/usr/local/bin/k3s"
	Dir            = "/etc/rancher/k3s"
	ConfigFile     = Dir + "/config.yaml"
	TokenFile      = Dir + "/token"
	agentTokenFile = Dir + "/agent-token"
	Kubeconfig     = Dir + "/k3s.yaml"
	// CA is the certificate authority that every node trusts; servers run an agent, too.
	CA = cri.K3sData + "/agent/server-ca.crt"
	// ServerToken is written by a server and contains the hash of its authority.
	ServerToken = cri.K3sData + "/server/token"
)

const startTimeout = 5 * time.Minute

// Paths in the work directory.
const (
	tokenSecret      = "k3s/token"
	agentTokenSecret = "k3s/agent-token"
)

// Services returns the cluster without the services that k3s includes: metrics-server and local storage.
func Services(c *manifest.Cluster) *manifest.Cluster {
	d := *c
	d.Metrics, d.Storage.Local = false, false
	return &d
}

// Verifies removes the checks that do not apply to k3s: those of kubeadm, and network checks in the catalog's CoreDNS.
func Verifies(tasks []task.Task) []task.Task {
	return slices.DeleteFunc(tasks, func(t task.Task) bool {
		return !slices.Contains([]string{
			"verify-nodes", "verify-pods", "verify-cluster", "verify-dns", "verify-images",
			"verify-result",
		}, t.Name)
	})
}

// Task installs k3s on the hosts of a role. k3s imports its own images from an archive when it starts.
func Task(c *manifest.Cluster, name string, where task.Where, role manifest.Role) task.Task {
	files := []task.Place{
		{Component: "k3s", Member: "", Path: Binary, Mode: task.Executable},
		{
			Component: "k3s-images", Member: "", Path: cri.K3sData + "/agent/images/k3s-airgap-images.tar.zst",
			Mode: 0o644,
		},
	}
	if !c.BringsNetwork() {
		files = append(files, cri.PluginFiles()...)
	}
	unit := Unit(role == manifest.RoleControlPlane)
	step := task.Settle(task.Task{
		Name:     name,
		Roles:    []manifest.Role{role},
		Where:    where,
		Files:    files,
		Packages: task.NodePackages(),
		Leaves: task.Leaves{
			Units: []string{unit},
			Paths: []string{path.Dir(NoRestartDropIn), Dir, cri.K3sData + "/agent", cri.K3sData + "/data", cri.K3sData +
				"/server", "/etc/rancher/node", "/run/k3s"},
			// Volumes of pods.
			Data: []string{cri.K3sData + "/storage"},
			Undo: machine.UndoAll(
				removeLinks,
				machine.DropSets("KUBE-"), machine.DropSets("inet6:KUBE-"), // k3s' network policies
			),
		},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) { return Setting(ctx, t, unit) })
	isServer := func(t *task.Host) bool { return t.Is(manifest.RoleControlPlane) }
	done, do := step.Done, step.Do
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		if role == manifest.RoleWorker && isServer(t) {
			return true, nil // a server is an agent, too
		}
		member, err := member.IsMember(ctx, t)
		if err != nil || !member {
			return false, err
		}
		return done(ctx, t)
	}
	step.Do = func(ctx context.Context, t *task.Host) error {
		if err := do(ctx, t); err != nil {
			return err
		}
		return t.Write(ctx, member.File(t.Site))
	}
	return step
}

// Unit returns the name of the unit that k3s' install script creates for a role.
func Unit(server bool) string {
	if server {
		return "k3s.service"
	}
	return "k3s-agent.service"
}

// Setting returns the files and the state of k3s on a host.
func Setting(ctx context.Context, t *task.Host, unit string) (task.Setting, error) {
	server := t.Is(manifest.RoleControlPlane)
	tokens, err := Tokens(ctx, t, server)
	if err != nil {
		return task.Setting{}, err
	}
	config, more, err := nodeConfig(ctx, t, server)
	if err != nil {
		return task.Setting{}, err
	}
	data, err := kube.Documents(config)
	if err != nil {
		return task.Setting{}, err
	}
	command := "agent"
	if server {
		command = "server"
	}
	files := slices.Concat(tokens, more, []task.File{
		{Path: ConfigFile, Mode: 0o600, Data: append([]byte(hostfile.Mark+"\n"), data...)},
		{Path: "/etc/systemd/system/" + unit, Mode: 0o644, Data: fmt.Appendf(nil, unitText, command)},
	})
	registry, err := registryFiles(t.Site)
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: append(files, registry...),
		// k3s reads registries.yaml when it starts.
		Reload: func(ctx context.Context, t *task.Host) error { return t.Systemctl(ctx, "restart", unit) },
		Apply:  func(ctx context.Context, t *task.Host) error { return start(ctx, t, unit) },
		Holds: func(ctx context.Context, t *task.Host) (bool, error) {
			return t.Test(ctx, "systemctl", "is-active", "--quiet", unit)
		},
		Ready: func(ctx context.Context, t *task.Host) error { return waitUntilNode(ctx, t, unit) },
	}, nil
}

// nodeConfig returns k3s' flags by name and the files that they refer to. https://docs.k3s.io/cli/server
func nodeConfig(ctx context.Context, t *task.Host, server bool) (kube.Document, []task.File, error) {
	c := t.Site.Cluster
	d := kube.Document{
		"node-name":   t.Name,
		"node-ip":     t.IP.String(),
		"kubelet-arg": kubeletFlags(c),
		"token-file":  TokenFile,
		// Without it k3s pulls missing images from upstream.
		"disable-default-registry-endpoint": true,
	}
	if c.Kubernetes.ProxyMode != manifest.ProxyIPTables {
		d["kube-proxy-arg"] = []any{"proxy-mode=" + string(c.Kubernetes.ProxyMode)}
	}
	if c.BringsNetwork() {
		link, err := interfaceOf(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		d["flannel-iface"] = link
	}
	// The package k3s-selinux has k3s' SELinux policy; without the package, k3s must not use SELinux.
	policy, err := t.Test(ctx, "test", "-e", "/usr/share/selinux/packages/k3s.pp")
	if err != nil {
		return nil, nil, err
	}
	if policy {
		d["selinux"] = true
	}
	if !server {
		d["server"] = "https://" + t.Site.Endpoint()
		return d, nil, nil
	}
	encrypted, err := encryptsSecrets(ctx, t.Site)
	if err != nil {
		return nil, nil, err
	}
	if encrypted {
		d["secrets-encryption"] = true
	}
	return serverConfig(t, d)
}

// kubeletFlags returns the kubelet's flags.
func kubeletFlags(c *manifest.Cluster) []any {
	flags := []any{"max-pods=" + strconv.Itoa(c.Kubernetes.MaxPods)}
	if c.DNS.NodeLocal && !task.TakesServiceAddress(c) {
		// By default k3s sets cluster-dns to the address of CoreDNS.
		flags = append(flags, "cluster-dns="+manifest.NodeDNSAddress)
	}
	return flags
}

// serverConfig adds the flags of servers.
func serverConfig(t *task.Host, d kube.Document) (kube.Document, []task.File, error) {
	c := t.Site.Cluster
	host, _, err := net.SplitHostPort(t.Site.Endpoint())
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
	maps.Copy(d, kube.Document{
		"agent-token-file":      agentTokenFile,
		"advertise-address":     t.IP.String(),
		"cluster-cidr":          c.Kubernetes.PodCIDR.String(),
		"service-cidr":          c.Kubernetes.ServiceCIDR.String(),
		"cluster-dns":           task.NthAddress(c.Kubernetes.ServiceCIDR[0], kube.DNSServiceIndex).String(),
		"cluster-domain":        c.DNS.Domain,
		"disable":               disabled,
		"tls-san":               []any{host},
		"write-kubeconfig-mode": "0600",
	})
	if !c.BringsNetwork() {
		d["flannel-backend"], d["disable-network-policy"] = "none", true
	}
	if masks := task.MaskFlags(c); len(masks) > 0 {
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
		files, err := datastore(t.Site, d)
		return d, files, err
	}
	if t == t.Site.FirstControlPlane() {
		d["cluster-init"] = true // etcd; a second server cannot join SQLite
	} else {
		d["server"] = "https://" + t.Site.Endpoint()
	}
	return d, nil, nil
}

// datastore makes the operator's etcd the datastore.
func datastore(r *task.Site, d kube.Document) ([]task.File, error) {
	e := r.Cluster.Etcd
	d["datastore-endpoint"] = strings.Join(e.Endpoints, ",")
	var files []task.File
	for _, f := range []struct{ flag, from, name string }{
		{"datastore-cafile", e.CA, "ca.crt"},
		{"datastore-certfile", e.Cert, "client.crt"},
		{"datastore-keyfile", e.Key, "client.key"},
	} {
		data, err := r.Values(f.from)
		if err != nil {
			return nil, fmt.Errorf("provided etcd: %w", err)
		}
		to := path.Join(Dir, "datastore", f.name)
		d[f.flag] = to
		files = append(files, task.File{Path: to, Mode: 0o600, Data: data})
	}
	return files, nil
}

// registryFiles returns the files that make k3s' containerd pull from the registry.
func registryFiles(r *task.Site) ([]task.File, error) {
	if r.Cluster.ImageRegistry.Type == manifest.RegistryNone {
		return nil, nil
	}
	access, err := r.Access()
	if err != nil {
		return nil, err
	}
	return cri.MirrorFiles(mirror.RuntimeK3s, access, r.Upstreams())
}

// Tokens returns the files with the join tokens, whose secrets are created once in the work directory. Joining nodes
// also get the hash of the cluster's authority from the first server: with a bare secret, k3s trusts any server. The
// token of agents does not admit servers.
func Tokens(ctx context.Context, t *task.Host, server bool) ([]task.File, error) {
	r := t.Site
	secret, err := r.Dir.Secret(tokenSecret)
	if err != nil {
		return nil, err
	}
	agents, err := r.Dir.Secret(agentTokenSecret)
	if err != nil {
		return nil, err
	}
	r.Mask.Hide(secret)
	r.Mask.Hide(agents)
	own := secret
	if first := r.FirstControlPlane(); t != first {
		pin, err := pinOf(ctx, first)
		if err != nil {
			return nil, err
		}
		if own = pin + "::server:" + secret; !server {
			own = pin + "::node:" + agents
		}
	}
	files := []task.File{{Path: TokenFile, Mode: 0o600, Data: []byte(own + "\n")}}
	if server {
		files = append(files, task.File{Path: agentTokenFile, Mode: 0o600, Data: []byte(agents + "\n")})
	}
	return files, nil
}

// pinOf returns the first part of the first server's token: the version of the format and the hash of the authority.
func pinOf(ctx context.Context, t *task.Host) (string, error) {
	data, err := t.Read(ctx, ServerToken)
	if err != nil {
		return "", fmt.Errorf("the first server's token: %w", err)
	}
	pin := regexp.MustCompile(`^K10[0-9a-f]{64}`).FindString(string(data))
	if pin == "" {
		return "", fmt.Errorf("%s on %s does not begin with K10 and a hash", ServerToken, t.Name)
	}
	return pin, nil
}

// interfaceOf returns the network interface with the node's address.
func interfaceOf(ctx context.Context, t *task.Host) (string, error) {
	out, err := t.Output(ctx, "ip", "-oneline", "address", "show", "to", t.IP.String())
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

// start starts k3s without waiting: a server without a quorum or an agent without a server never becomes ready.
func start(ctx context.Context, t *task.Host, unit string) error {
	for _, name := range links() {
		there, err := t.Test(ctx, "test", "-e", name)
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if err := t.Run(ctx, "ln", "-sfn", cri.K3sProgram, name); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unit}, {"restart", "--no-block", unit}} {
		if err := t.Systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// links returns the links under which k3s acts as other programs.
func links() []string {
	return []string{"/usr/local/bin/kubectl", "/usr/local/bin/crictl", "/usr/local/bin/ctr"}
}

// removeLinks removes the links to k3s and keeps programs from elsewhere.
func removeLinks(ctx context.Context, t *task.Host) error {
	for _, name := range links() {
		link, err := t.Test(ctx, "test", "-L", name)
		if err != nil {
			return err
		}
		if !link {
			continue
		}
		to, err := t.Output(ctx, "readlink", name)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(to)) != cri.K3sProgram {
			continue
		}
		if err := t.Run(ctx, "rm", "-f", name); err != nil {
			return err
		}
	}
	return nil
}

// waitUntilNode waits until the host is a node. A server asks itself, an agent's node is looked up on the first server.
func waitUntilNode(ctx context.Context, t *task.Host, unit string) error {
	asked := t
	if !t.Is(manifest.RoleControlPlane) {
		asked = t.Site.FirstControlPlane()
	}
	err := task.Eventually(ctx, startTimeout, func(ctx context.Context) error {
		if _, err := asked.Kubectl(ctx, "get", "node", t.Name, "--output=name"); err != nil {
			return err
		}
		return t.Systemctl(ctx, "is-active", "--quiet", unit)
	})
	if err != nil {
		return t.WithUnitLog(ctx, unit, err)
	}
	return nil
}

// unitText is the unit from k3s' install.sh (create_systemd_service_file).
const unitText = hostfile.Mark + `
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
ExecStart=` + Binary + ` %s
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

// Stop stops k3s and its pods, as k3s-killall.sh does: pods outlive the unit.
func Stop(ctx context.Context, t *task.Host) error {
	stopped := false
	for _, unit := range []string{Unit(true), Unit(false)} {
		file, err := t.Read(ctx, "/etc/systemd/system/"+unit)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.HasPrefix(string(file), hostfile.Mark) {
			continue // no unit, or not ours
		}
		if err != nil {
			return err
		}
		stopped = true
		for _, args := range [][]string{{"stop", "--no-block", unit}, {"kill", "--signal=KILL", unit}, {"stop", unit}} {
			if _, err := t.Test(ctx, append([]string{"systemctl"}, args...)...); err != nil {
				return err
			}
		}
	}
	if !stopped {
		return nil
	}
	if _, err := t.Test(ctx, "systemctl", "stop", "kubepods.slice"); err != nil {
		return err
	}
	if _, err := t.Test(ctx, host.Script("kill-pods.sh", killPodsScript, "/sys/fs/cgroup")...); err != nil {
		return err
	}
	return t.Unmount(ctx, "/run/k3s/", cri.K3sData+"/", "/run/netns/cni-")
}

// NoRestartDropIn keeps a removed server from restarting until the host's next boot.
const NoRestartDropIn = "/run/systemd/system/k3s.service.d/kkbundle-leaving.conf"

// KeepDown keeps a server from restarting while its node is deleted. k3s then removes its etcd member and the server
// exits; a restart would make it a new member before its host is reset.
// https://github.com/k3s-io/k3s/blob/v1.34.3%2Bk3s1/pkg/etcd/member_controller.go
func KeepDown(ctx context.Context, t *task.Host) error {
	if !t.Is(manifest.RoleControlPlane) || t.Conn == nil || t.Err != nil {
		return nil
	}
	if err := t.Write(ctx, task.File{
		Path: NoRestartDropIn, Mode: 0o644,
		Data: []byte(hostfile.Mark + "\n[Service]\nRestart=no\n"),
	}); err != nil {
		return err
	}
	return t.Systemctl(ctx, "daemon-reload")
}

// QuorumWithout returns an error if removing hosts would leave etcd without a healthy majority. Servers include etcd,
// so a member counts as healthy if its node is ready.
func QuorumWithout(ctx context.Context, r *task.Site, going []*task.Host) error {
	nodes, err := r.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil {
		return err
	}
	left, leaves, ill := 0, false, []string{}
	for _, n := range nodes {
		if _, is := n.Labels["node-role.kubernetes.io/etcd"]; !is {
			continue
		}
		switch name := n.Name; {
		case slices.ContainsFunc(going, func(t *task.Host) bool { return t.Name == name }):
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
	return etcd.QuorumLoss(going[0], left, ill)
}

// An UnsupportedError is a command that supports only kubeadm clusters.
type UnsupportedError struct{ Command, Instead string }

// Error names the command.
func (e *UnsupportedError) Error() string {
	return e.Command + " supports only clusters made with kubeadm; this one uses k3s"
}

// Hint returns the remedy.
func (e *UnsupportedError) Hint() string { return e.Instead }

// Refuses returns an error that names k3s' own command if k3s does not support a command.
func Refuses(command string) error {
	instead, refused := map[string]string{
		task.EtcdCommand:        "k3s takes etcd snapshots by itself; on a server, k3s etcd-snapshot takes one now, and k3s server --cluster-reset restores one",
		task.CertsRenewCommand:  "k3s renews certificates that expire soon when it starts; k3s certificate rotate, on a stopped server, renews all",
		task.CertsBackupCommand: "back up /var/lib/rancher/k3s/server/tls and /var/lib/rancher/k3s/server/token of a server, and k3s/ of the work directory",
	}[command]
	if !refused {
		return nil
	}
	return &UnsupportedError{command, instead}
}

// AdminKubeconfig returns the administrator's kubeconfig; its loopback address is replaced by the cluster's endpoint.
func AdminKubeconfig(ctx context.Context, t *task.Host) ([]byte, error) {
	data, err := t.Read(ctx, Kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := kube.CheckKubeconfig(data); err != nil {
		return nil, err
	}
	var config kube.Document
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", Kubeconfig, err)
	}
	clusters, _ := config["clusters"].([]any)
	for _, one := range clusters {
		if named, ok := one.(kube.Document); ok {
			if c, ok := named["cluster"].(kube.Document); ok {
				c["server"] = "https://" + t.Site.Endpoint()
			}
		}
	}
	return yaml.Marshal(config)
}
