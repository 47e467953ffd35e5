package kubeadm

import (
	"bufio"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// SecurityChecks returns the tasks that inspect running components and send requests that must be refused.
func SecurityChecks() []task.Task {
	return []task.Task{
		{Name: "verify-hosts-security", Roles: []manifest.Role{manifest.RoleCluster}, Do: answered(verifyHostSecurity)},
		{
			Name: "verify-security", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First,
			Do: answered(verifyClusterSecurity),
		},
	}
}

// A breach is a component or a file that is not as the level of security has it.
type breach struct{ error }

func breachf(format string, args ...any) error { return breach{fmt.Errorf(format, args...)} }

// answerWait bounds the wait for a component that restarts.
const answerWait = time.Minute

// answered repeats a check until it has an answer: a component that restarts has none for a moment. A breach is one.
func answered(check func(ctx context.Context, t *task.Host) error) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		var found error
		err := task.Eventually(ctx, answerWait, func(ctx context.Context) error {
			err := check(ctx, t)
			if errors.As(err, new(breach)) {
				found, err = err, nil
			}
			return err
		})
		return errors.Join(found, err)
	}
}

// securityLevel returns the level at the cluster's creation, which is in force; "" for clusters older than levels.
func securityLevel(ctx context.Context, r *task.Site) (manifest.SecurityLevel, error) {
	settings, _, err := member.Membership(ctx, r.FirstControlPlane())
	for line := range strings.Lines(settings) {
		if level, ok := strings.CutPrefix(strings.TrimSpace(line), "kubernetes.security "); ok {
			return manifest.SecurityLevel(level), err
		}
	}
	return "", err
}

// verifyHostSecurity checks one node.
func verifyHostSecurity(ctx context.Context, t *task.Host) error {
	level, err := securityLevel(ctx, t.Site)
	if err != nil || level == "" {
		return err
	}
	paths := SecretPaths()
	if level == manifest.SecurityHardened {
		paths = slices.Concat(paths, privatePaths())
	}
	open, err := OpenFiles(ctx, t, paths...)
	if err != nil {
		return err
	}
	var errs []error
	if len(open) > 0 {
		errs = append(errs, breachf("readable by users other than root: %s", strings.Join(open, ", ")))
	}
	errs = append(errs, checkAnonymous(ctx, t, net.JoinHostPort(t.IP.String(), "10250"), "/pods"),
		checkTLS(ctx, t, net.JoinHostPort(t.IP.String(), "10250"), "the kubelet"))
	if t.Is(manifest.RoleControlPlane) {
		errs = append(errs, verifyControlPlane(ctx, t, level))
	}
	return errors.Join(errs...)
}

// verifyControlPlane checks the components on a control plane.
func verifyControlPlane(ctx context.Context, t *task.Host, level manifest.SecurityLevel) error {
	api := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	errs := []error{
		checkAnonymous(ctx, t, api, "/api/v1/namespaces/kube-system/secrets"),
		checkTLS(ctx, t, api, "the API server"),
	}
	for _, one := range []struct{ program, port string }{
		{"kube-controller-manager", "10257"},
		{"kube-scheduler", "10259"},
	} {
		running, err := arguments(ctx, t, one.program)
		if err != nil {
			return err
		}
		errs = append(errs, checkTLS(ctx, t, net.JoinHostPort(bindAddress(running), one.port), one.program))
	}
	if level == manifest.SecurityHardened && limitsAnonymous(t.Site) {
		errs = append(errs, checkAnonymous(ctx, t, api, "/version"))
	}
	return errors.Join(append(errs, checkFlags(ctx, t))...)
}

// bindAddress returns the address of a running program on its own host, from its arguments. kubeadm's default is
// 127.0.0.1, in IPv6 clusters, too, but flags and patches can change it.
func bindAddress(arguments []string) string {
	for _, a := range arguments {
		value, _ := strings.CutPrefix(a, "--bind-address=") // other flags do not parse as an address
		ip, err := netip.ParseAddr(value)
		switch {
		case err != nil:
			continue
		case ip.IsUnspecified():
			return task.Loopback(value)
		}
		return ip.String()
	}
	return task.Loopback("")
}

// components maps names in ClusterConfiguration to programs.
func components() map[string]string {
	return map[string]string{
		apiServer: "kube-apiserver", controllerManager: "kube-controller-manager",
		scheduler: "kube-scheduler",
	}
}

// checkFlags checks that running components have the flags of the level, unless the cluster file overrides them.
func checkFlags(ctx context.Context, t *task.Host) error {
	guarded, err := Guarded(ctx, t.Site)
	if err != nil {
		return err
	}
	config, err := ConfigOf(ctx, t.Site)
	if err != nil {
		return err
	}
	whole := config.ClusterConfiguration()
	var errs []error
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		running, err := arguments(ctx, t, components()[name])
		if err != nil {
			return err
		}
		component, _ := whole[name].(map[string]any)
		wanted := argsOf(component["extraArgs"])
		for flag := range securityPart(t.Site, guarded).Flags[name] {
			for _, a := range wanted {
				if want := fmt.Sprintf("--%s=%v", flag, a.value); a.name == flag && !slices.Contains(running, want) {
					errs = append(errs, breachf(
						"%s runs without %s: its manifest was changed, or a patch overrides the flag",
						components()[name], want))
				}
			}
		}
	}
	return errors.Join(errs...)
}

//go:embed scripts/process-arguments.sh
var processArgumentsScript string

// arguments returns the command line of a running program.
func arguments(ctx context.Context, t *task.Host, program string) ([]string, error) {
	out, err := t.Output(ctx, host.Script("process-arguments.sh", processArgumentsScript, program)...)
	if err != nil {
		return nil, fmt.Errorf("%s is not running: %w", program, err)
	}
	return strings.Split(string(out), "\n"), nil
}

// handshake opens a TLS connection through the host. The certificate is not verified: no secret is sent.
func handshake(ctx context.Context, t *task.Host, address string, c *tls.Config) (*tls.Conn, error) {
	raw, err := t.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.InsecureSkipVerify = true
	conn := tls.Client(raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

const securityWait = 20 * time.Second

// checkTLS returns an error if a server accepts TLS 1.1.
func checkTLS(ctx context.Context, t *task.Host, address, what string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("%s at %s does not speak TLS: %w", what, address, err)
	}
	_ = conn.Close() // nothing was written
	conn, err = handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err != nil {
		return ctx.Err()
	}
	_ = conn.Close() // nothing was written
	return breachf("%s at %s accepts TLS 1.1", what, address)
}

// checkAnonymous returns an error if a server answers an unauthenticated request.
func checkAnonymous(ctx context.Context, t *task.Host, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(at) // the context also ends connections without deadlines
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
		return nil
	}
	return breachf("%s answers unauthenticated requests for %s (%s)", address, path, answer.Status)
}

// verifyClusterSecurity checks access rights, encryption and audit log, and admission of a hardened cluster.
func verifyClusterSecurity(ctx context.Context, t *task.Host) error {
	level, err := securityLevel(ctx, t.Site)
	if err != nil || level == "" {
		return err
	}
	guarded, err := Guarded(ctx, t.Site)
	if err != nil {
		return err
	}
	errs := []error{checkAnonymousRights(ctx, t)}
	if level == manifest.SecurityHardened {
		errs = append(errs, checkPrivileged(ctx, t))
	}
	if guarded {
		errs = append(errs, checkSecrets(ctx, t))
	}
	return errors.Join(errs...)
}

// checkAnonymousRights checks that unauthenticated users have no role bindings except Kubernetes' own.
func checkAnonymousRights(ctx context.Context, t *task.Host) error {
	var list rbacv1.RoleBindingList // of both kinds, which have the same fields
	if err := t.Kube().Get(ctx, &list, "rolebindings,clusterrolebindings", "--all-namespaces"); err != nil {
		return err
	}
	own := []string{"kubeadm:bootstrap-signer-clusterinfo", "system:public-info-viewer"}
	var errs []error
	for _, b := range list.Items {
		for _, s := range b.Subjects {
			open := s.Name == "system:anonymous" || s.Name == "system:unauthenticated"
			if open && !slices.Contains(own, b.Name) {
				errs = append(errs, breachf("role binding %s grants rights to unauthenticated users (%s)", b.Name,
					s.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// checkPrivileged checks by a dry run that the API server refuses a privileged pod.
func checkPrivileged(ctx context.Context, t *task.Host) error {
	pod, err := kube.YAML(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kkbundle-verify", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "verify", Image: "kkbundle.invalid/none",
			SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		}}},
	})
	if err != nil {
		return err
	}
	_, err = t.Kube().Kubectl(ctx, kube.Command{
		Args:  []string{"create", "--dry-run=server", "--filename=-"},
		Stdin: pod,
	})
	var failed *host.ExitError
	switch {
	case err == nil:
		return breachf("namespace default allows privileged pods: its labels or the API server's admission configuration were changed")
	case errors.As(err, &failed) && strings.Contains(failed.Stderr, "PodSecurity"):
		return nil
	}
	return err
}

// checkSecrets creates a Secret and checks that etcd stores it encrypted and the audit log records it.
func checkSecrets(ctx context.Context, t *task.Host) (err error) {
	const namespace = "--namespace=kube-system"
	name := "kkbundle-verify-" + task.RandomHex(4)
	if _, err := t.Kubectl(ctx, "create", "secret", "generic", namespace, name, "--from-literal=a=b"); err != nil {
		return err
	}
	defer func() {
		_, forget := t.Kubectl(context.WithoutCancel(ctx), "delete", "secret", namespace, name)
		err = errors.Join(err, forget)
	}()
	errs := []error{checkAudited(ctx, t, name)}
	if t.Site.Cluster.Etcd.Type == manifest.EtcdInternal {
		errs = append(errs, checkEncrypted(ctx, t, "/registry/secrets/kube-system/"+name))
	}
	return errors.Join(errs...)
}

func checkEncrypted(ctx context.Context, t *task.Host, key string) error {
	const pki = "/etc/kubernetes/pki/etcd/"
	out, err := t.Kubectl(task.WithoutOutput(ctx), "exec", "--namespace=kube-system", "etcd-"+t.Name, "--", "etcdctl",
		"--endpoints=https://localhost:2379",
		"--cacert="+pki+"ca.crt", "--cert="+pki+"server.crt", "--key="+pki+"server.key", "get", "--print-value-only",
		key)
	if err != nil {
		return fmt.Errorf("read a Secret from etcd: %w", err)
	}
	if !strings.HasPrefix(string(out), "k8s:enc:") {
		return breachf("etcd stores Secrets unencrypted: %s was changed", EncryptionOnHost)
	}
	return nil
}

// checkAudited searches the logs of all control planes: any API server may have served the request.
func checkAudited(ctx context.Context, t *task.Host, name string) error {
	for _, one := range t.Site.Connected(manifest.RoleControlPlane) {
		ok, err := one.Test(ctx, "grep", "--quiet", "--fixed-strings", name, auditLog)
		if err != nil || ok {
			return err
		}
	}
	return fmt.Errorf("the creation of a Secret is not in %s", auditLog)
}
