//go:build linux

package incluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	reference "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/internal/packed"
)

// TestPodsRun runs the containers of the registry's and the proxy's pod as processes: their commands, in a root
// directory that has nothing but their mounts, as their users. The container runtime, the service and port-forward
// are stand-ins: ports are others.
func TestPodsRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("another root directory needs root")
	}
	p := runnable(t)
	ports := freePorts(t, 3)
	push, pull, node := ports[0], ports[1], ports[2]
	replace := strings.NewReplacer("127.0.0.1:5000", "127.0.0.1:"+push, ":5443", "127.0.0.1:"+pull)
	p.storage, p.clusterIP, p.port = storage{class: "c"}, "", 0
	container(t, p, p.deployment().Spec.Template.Spec, replace.Replace)
	proxy := p.proxies()[0].Spec.Template.Spec
	last := len(proxy.Containers[0].Command) - 3
	proxy.Containers[0].Command[last], proxy.Containers[0].Command[last+1] = "127.0.0.1:"+node, "127.0.0.1:"+pull
	container(t, p, proxy, func(s string) string { return s })
	healthy(t, "http://127.0.0.1:"+node+"/healthz")
	image, err := random.Image(100_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	at := func(port string) reference.Reference {
		ref, err := reference.ParseReference("127.0.0.1:"+port+"/lab/app:1", reference.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	as := func(l Login) remote.Option {
		return remote.WithAuth(&authn.Basic{Username: l.User, Password: l.Password})
	}
	if response, err := http.Get("http://127.0.0.1:" + push + "/v2/"); err == nil {
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP at the address for pushes: %s", response.Status)
		}
	}
	proven := remote.WithTransport(&http.Transport{TLSClientConfig: (&Registry{authority: p.secret[keyAuthority]}).clientTLS()})
	if err := remote.Write(at(push), image, as(p.secret.pull()), proven); err == nil ||
		!strings.Contains(err.Error(), "only pull") {
		t.Errorf("a push with the pull login: %v", err)
	}
	if err := remote.Write(at(push), image, as(p.secret.push()), proven); err != nil {
		t.Fatal(err)
	}
	got, err := remote.Image(at(node), as(p.secret.pull()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := got.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[1].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // the client compares the digest
		t.Error(err)
	}
	other, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(at(node), other, as(p.secret.push())); err == nil || !strings.Contains(err.Error(), "405") {
		t.Errorf("a push to the address for pulls: %v", err)
	}
	if _, err := remote.Head(at(node)); err == nil {
		t.Error("a pull without a login")
	}
}

// runnable is a plan with the programs that make helper built.
func runnable(t *testing.T) *plan {
	t.Helper()
	var programs Programs
	at := os.DirFS("../../cmd/internal/helper/bin")
	var failures [3]error
	programs.Start, failures[0] = packed.Program(at, "kkbundle-start", runtime.GOARCH)
	programs.Proxy, failures[1] = packed.Program(at, "kkbundle-proxy", runtime.GOARCH)
	programs.Registry, failures[2] = packed.Stream(at, packed.Dictionary, runtime.GOARCH)
	if err := errors.Join(failures[:]...); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%v: run make helper", err)
	} else if err != nil {
		t.Fatal(err)
	}
	set, err := programSet(nil).with(runtime.GOARCH, programs)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := complete(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &plan{namespace: "n", images: []borrowed{{arch: runtime.GOARCH, image: "i"}}, programs: set, secret: s}
}

// container starts a pod's container until the test ends.
func container(t *testing.T, p *plan, pod corev1.PodSpec, replace func(string) string) {
	t.Helper()
	root := t.TempDir()
	for dir := root; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // t.TempDir's are for their owner only
			t.Fatal(err)
		}
	}
	files := map[string]map[string][]byte{}
	for _, m := range p.configMaps() {
		files[m.Name] = m.BinaryData
	}
	files["authority"] = map[string][]byte{keyAuthority: []byte(p.authority().Data[keyAuthority])}
	id := int(*pod.SecurityContext.RunAsUser)
	for _, v := range pod.Volumes {
		content, writable := files[v.Name], v.Secret == nil && v.ConfigMap == nil
		if v.Secret != nil {
			content = map[string][]byte{}
			for _, item := range v.Secret.Items {
				content[item.Path] = p.secret[item.Key]
			}
		}
		dir := ""
		for _, m := range pod.Containers[0].VolumeMounts {
			if m.Name == v.Name {
				dir = filepath.Join(root, m.MountPath)
			}
		}
		if dir == "" || content == nil && !writable {
			t.Fatalf("volume %s is not mounted, or empty", v.Name)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, data := range content {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o555); err != nil {
				t.Fatal(err)
			}
		}
		if writable {
			if err := os.Chown(dir, id, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	command := pod.Containers[0].Command
	for i := range command {
		command[i] = replace(command[i])
	}
	var output bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{}, "/", &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{
		Uid: uint32(id),
		Gid: uint32(id),
	}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%s: %v\n%s", command[len(command)-1], err, output.String())
		}
	})
}

// freePorts returns ports that differ: each is held until all are known.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

func healthy(t *testing.T, url string) {
	t.Helper()
	var last error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		response, err := http.Get(url)
		if last = err; err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
	}
	t.Fatalf("%s: %v", url, last)
}
