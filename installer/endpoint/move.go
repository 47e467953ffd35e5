package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Address is an endpoint of a cluster: its type, and host:port.
type Address struct {
	Type     manifest.EndpointType
	HostPort string
}

// String returns the address as the stamp of a move has it.
func (a Address) String() string { return string(a.Type) + " " + a.HostPort }

// A Move changes the endpoint of a running cluster.
type Move struct {
	// To is the endpoint of the cluster file.
	To Address
	// From are the other endpoints that nodes use: the recorded ones, and those of moves that were interrupted.
	From []Address
}

// FindMove returns the move from the endpoints that the connected nodes record to the cluster file's. It has no From
// if the cluster is there.
func FindMove(ctx context.Context, s *task.Site) (Move, error) {
	m := Move{To: Address{s.Cluster.ControlPlaneEndpoint.Type, s.Endpoint()}}
	hosts := s.Connected(manifest.RoleCluster)
	found := make([][]string, len(hosts))
	err := s.OnAll(hosts, func(i int, t *task.Host) error {
		_, settings, joined, err := member.Recorded(ctx, t)
		if err != nil || !joined {
			return err
		}
		found[i] = []string{member.Value(settings, member.EndpointTypeSetting) + " " +
			member.Value(settings, member.EndpointSetting)}
		stamp, begun, err := marks.EndpointMove.Read(ctx, t)
		if begun {
			found[i] = append(found[i], strings.Split(strings.TrimSpace(string(stamp)), "\n")...)
		}
		return err
	})
	for _, line := range slices.Concat(found...) {
		kind, hostPort, ok := strings.Cut(line, " ")
		a := Address{manifest.EndpointType(kind), hostPort}
		if ok && hostPort != "" && a != m.To && !slices.Contains(m.From, a) {
			m.From = append(m.From, a)
		}
	}
	return m, err
}

// BeginMoveTask records on the control planes which endpoints nodes may use until the move ends.
func BeginMoveTask(m Move) task.Task {
	file := func() task.File {
		text := m.To.String() + "\n"
		for _, a := range m.From {
			text += a.String() + "\n"
		}
		return marks.EndpointMove.File([]byte(text))
	}
	return task.Task{
		Name: "endpoint-begin", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return t.HasFiles(ctx, file()) },
		Do:   func(ctx context.Context, t *task.Host) error { return t.Write(ctx, file()) },
	}
}

// EndMoveTask ends a move.
func EndMoveTask() task.Task {
	return task.Task{
		Name: "endpoint-end", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := marks.Any(ctx, t, marks.EndpointMove)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error { return marks.Remove(ctx, t, marks.EndpointMove) },
	}
}

// MoveTasks returns the tasks that make the new endpoint work beside the old one. Clients follow later.
func MoveTasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	switch c.ControlPlaneEndpoint.Type {
	case manifest.EndpointHAProxy:
		tasks = LocalEndpointTasks(c)
	case manifest.EndpointKubeVIP:
		tasks = []task.Task{KubeVIPTask(), answerTask()}
	default:
		tasks = []task.Task{answerTask()}
	}
	for i := range tasks {
		tasks[i].AllOrNone = true
	}
	return tasks
}

// Rewritten returns a kubeconfig with the new endpoint in place of the old ones. keep is an address that stays: the
// host's own.
func (m Move) Rewritten(kubeconfig, keep string) string {
	return m.rewritten(kubeconfig, keep, m.To.HostPort)
}

func (m Move) rewritten(kubeconfig, keep, to string) string {
	lines := strings.SplitAfter(kubeconfig, "\n")
	for i, line := range lines {
		before, server, ok := strings.Cut(strings.TrimRight(line, "\n"), "server: https://")
		if !ok || server == keep || strings.TrimSpace(before) != "" {
			continue
		}
		if slices.ContainsFunc(m.From, func(a Address) bool { return a.HostPort == server }) {
			lines[i] = before + "server: https://" + to + line[len(strings.TrimRight(line, "\n")):]
		}
	}
	return strings.Join(lines, "")
}

// Hosts returns the names and addresses of the new endpoint that API servers' certificates need, and those of the old
// ones.
func (m Move) Hosts(s *task.Site) (now, before []string) {
	now = append([]string{hostOf(m.To.HostPort)}, Part(s).Names...)
	for _, a := range m.From {
		if host := hostOf(a.HostPort); !slices.Contains(now, host) {
			before = append(before, host)
		}
	}
	return now, before
}

// Presents checks that a control plane's own API server has a certificate for each of the names.
func Presents(ctx context.Context, t *task.Host, names []string) error {
	ca, err := t.Read(ctx, kube.ClusterCA)
	if err != nil {
		return err
	}
	own := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	for _, name := range names {
		if err := apiAnswers(ctx, t, own, name, ca); err != nil {
			return err
		}
	}
	return nil
}

// ClusterInfoTask changes the endpoint in the ConfigMap from which joining nodes learn it.
func ClusterInfoTask(m Move) task.Task {
	const name, key = "cluster-info", "kubeconfig"
	look := func(ctx context.Context, t *task.Host) (text string, changed bool, err error) {
		config, err := t.Kube().ConfigMap(ctx, kube.PublicNamespace, name, "--ignore-not-found")
		text = m.Rewritten(config.Data[key], "")
		return text, text != config.Data[key], err
	}
	return task.Task{
		Name: "cluster-info", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			_, changed, err := look(ctx, t)
			return !changed, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			text, _, err := look(ctx, t)
			if err != nil {
				return err
			}
			return t.Kube().PatchConfigMap(ctx, kube.PublicNamespace, name, key, text)
		},
	}
}

const (
	proxyName = "kube-proxy"
	// proxyWait bounds the replacement of kube-proxy's pods, which its DaemonSet does node by node.
	proxyWait = 15 * time.Minute
)

// ProxyMoveTask changes the endpoint of kube-proxy and replaces its pods: they read it at their start.
func ProxyMoveTask(m Move) task.Task {
	return task.Task{
		Name: "proxy-move", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			p, err := m.proxy(ctx, t)
			if err != nil || p.absent {
				return err == nil, err
			}
			return !p.changed && p.marked && p.rolled, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			p, err := m.proxy(ctx, t)
			if err != nil || p.absent {
				return err
			}
			if p.changed {
				if err := t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, proxyName, proxyKey, p.text); err != nil {
					return err
				}
			}
			if !p.marked {
				patch, err := json.Marshal(kube.Document{"spec": kube.Document{"template": kube.Document{"metadata": kube.Document{
					"annotations": kube.Document{marks.ProxyEndpointAnnotation: p.server},
				}}}})
				if err != nil {
					return err
				}
				if _, err := t.Kubectl(ctx, "patch", "daemonset", proxyName, "--namespace="+kube.SystemNamespace,
					"--type=merge", "--patch="+string(patch)); err != nil {
					return err
				}
			}
			return task.Eventually(ctx, proxyWait, func(ctx context.Context) error {
				p, err := m.proxy(ctx, t)
				if err == nil && !p.rolled {
					err = errors.New("the pods of kube-proxy are not all replaced and ready")
				}
				return err
			})
		},
	}
}

// A proxyState is kube-proxy's during a move.
type proxyState struct {
	absent  bool   // the cluster has no kube-proxy
	server  string // host:port that its kubeconfig is to name
	text    string // its kubeconfig with that
	changed bool   // the kubeconfig in the cluster is another one
	marked  bool   // its pods are to start with that kubeconfig
	rolled  bool   // they all have
}

func (m Move) proxy(ctx context.Context, t *task.Host) (proxyState, error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, proxyName, "--ignore-not-found")
	if err != nil || config.Data == nil {
		return proxyState{absent: true}, err
	}
	var set appsv1.DaemonSet
	if err := t.Kube().Get(ctx, &set, "daemonset", proxyName, "--namespace="+kube.SystemNamespace); err != nil {
		return proxyState{}, err
	}
	own := net.JoinHostPort(t.Site.Loopback().String(), strconv.Itoa(manifest.DefaultPort))
	p := proxyState{server: m.To.HostPort}
	all := m
	if m.To.Type == manifest.EndpointHAProxy {
		p.server = own // by name it would keep the address from the pod's start, as in ProxyEndpointTask
		all.From = append(slices.Clone(m.From), m.To)
	} else if m.leaves(manifest.EndpointHAProxy) {
		all.From = append(slices.Clone(m.From), Address{manifest.EndpointHAProxy, own})
	}
	p.text = all.rewritten(config.Data[proxyKey], "", p.server)
	p.changed = p.text != config.Data[proxyKey]
	p.marked = set.Spec.Template.Annotations[marks.ProxyEndpointAnnotation] == p.server
	status := set.Status
	p.rolled = status.ObservedGeneration >= set.Generation &&
		status.UpdatedNumberScheduled >= status.DesiredNumberScheduled &&
		status.NumberReady >= status.DesiredNumberScheduled
	return p, nil
}

// leaves reports whether the move leaves an endpoint of a type.
func (m Move) leaves(kind manifest.EndpointType) bool {
	return m.To.Type != kind && slices.ContainsFunc(m.From, func(a Address) bool { return a.Type == kind })
}

// FormerTasks removes the programs of the old endpoints, after all clients have left them.
func FormerTasks(m Move) []task.Task {
	var tasks []task.Task
	if m.leaves(manifest.EndpointKubeVIP) {
		tasks = append(tasks, task.Task{
			Name: "former-kube-vip", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
			Done: func(ctx context.Context, t *task.Host) (bool, error) {
				if there, err := t.AnyExists(ctx, KubeVIPManifest); err != nil || there {
					return false, err
				}
				out, err := t.Output(ctx, "ip", "-oneline", "address", "show")
				return !slices.ContainsFunc(m.virtual(),
					func(a netip.Addr) bool { return strings.Contains(string(out), " "+a.String()+"/") }), err
			},
			Do: m.removeKubeVIP,
		})
	}
	if m.leaves(manifest.EndpointHAProxy) {
		files := []string{haproxyConfig, haproxyCA, string(marks.Setting(haproxyName)), haproxyManifest}
		tasks = append(tasks, task.Task{
			Name: "former-haproxy", Roles: []manifest.Role{manifest.RoleWorker}, AllOrNone: true,
			Done: func(ctx context.Context, t *task.Host) (bool, error) {
				there, err := t.AnyExists(ctx, files...)
				return !there, err
			},
			Do: func(ctx context.Context, t *task.Host) error {
				return t.Run(ctx, append([]string{"rm", "-f"}, files...)...)
			},
		})
	}
	return tasks
}

// removeKubeVIP removes kube-vip's pod, which gives the address back, and the address if the pod was killed before.
func (m Move) removeKubeVIP(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, "rm", "-f", KubeVIPManifest); err != nil {
		return err
	}
	if err := task.Eventually(ctx, staticPodWait, func(ctx context.Context) error {
		var pod corev1.Pod
		err := t.Site.FirstControlPlane().Kube().Get(ctx, &pod, "pod", kubeVIPName+"-"+t.Name, "--namespace="+
			kube.SystemNamespace, "--ignore-not-found")
		if err == nil && pod.Name != "" {
			err = fmt.Errorf("the pod of kube-vip on %s still runs", t.Name)
		}
		return err
	}); err != nil {
		return err
	}
	for _, vip := range m.virtual() {
		if err := t.DropAddress(ctx, vip); err != nil {
			return err
		}
	}
	return nil
}

// virtual returns the addresses that kube-vip announced.
func (m Move) virtual() []netip.Addr {
	var list []netip.Addr
	for _, a := range m.From {
		if vip, err := netip.ParseAddr(hostOf(a.HostPort)); err == nil && a.Type == manifest.EndpointKubeVIP {
			list = append(list, vip)
		}
	}
	return list
}
