package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// siteConfig is the configuration of the containerd that the worker has before kkbundle comes.
const siteConfig = "version = 3\n\n[debug]\n  level = \"warn\"\n"

// TestTakeOver installs on a worker whose containerd of its own runs a container: it is refused, then permitted; the
// container lives through the installation and the reset, after which the worker has its own containerd again. The
// cluster has a runtime class and a drop-in besides.
func TestTakeOver(t *testing.T) {
	th := start(t, scenario{hosts: 2, edit: func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}\n",
			"cri: {takeOver: true, runtimeClasses: [{name: second, binary: /usr/local/sbin/runc}]}\netcd: {type: internal}\n")
	}})
	th.nodes = 2
	th.makeBundle(t)
	pid := ""
	steps(t, []step{
		{"the worker has a containerd of its own", func(t *testing.T) { pid = th.ownContainerd(t) }},
		{"it is refused, and nothing is changed", func(t *testing.T) {
			before := th.traces(t)
			r := run(t, th.site(t, "precheck", "--set", "cri.takeOver=false")).must(t, 12)
			if !strings.Contains(r.stdout, "containerd") ||
				!strings.Contains(r.stdout, "is running, containers in site") {
				t.Errorf("want the runtime and its containers, got\n%s", r.stdout)
			}
			if after := th.traces(t); after != before {
				t.Errorf("precheck left traces:\n%s", difference(before, after))
			}
			th.pristine = before
		}},
		{"an install killed at containerd continues, and the container lives", func(t *testing.T) {
			th.killAt(t, "containerd")
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s", r.took.Round(100*time.Millisecond))
			th.siteContainer(t, pid)
			th.on(t, 2, "pgrep -f '^/usr/local/bin/containerd ?$'")
		}},
		{"the cluster works", th.cluster},
		{"a rerun changes nothing", th.rerun},
		{"pods run with the runtime class", func(t *testing.T) {
			th.kubectl(t, `run classy --image=docker.io/lab/labapp:1 --overrides='{"spec":{"runtimeClassName":"second"}}'`)
			th.kubectl(t, "wait pod/classy --for=condition=Ready --timeout=60s")
			th.kubectl(t, "delete pod classy --wait --grace-period=1")
		}},
		{"a drop-in counts", func(t *testing.T) {
			th.on(t, 2, `printf 'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.dropped]\nruntime_type = "io.containerd.runc.v2"\n' > /etc/containerd/conf.d/99-site.toml &&
				systemctl restart containerd && containerd config dump | grep runtimes.dropped`)
			th.siteContainer(t, pid)
		}},
		{"reset brings its own containerd back, and the container lives", func(t *testing.T) {
			run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
			th.siteContainer(t, pid)
			th.on(t, 2, "pgrep -f '^/usr/bin/containerd ?$' && systemctl is-enabled containerd && ! ctr -n k8s.io tasks ls -q | grep .")
			if got := th.on(t, 2, "cat /etc/containerd/config.toml"); got != siteConfig {
				t.Errorf("the configuration is\n%s", got)
			}
			if after := th.traces(t); after != th.pristine {
				t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
			}
		}},
		{"a repeated reset changes nothing", func(t *testing.T) {
			run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
			th.siteContainer(t, pid)
		}},
	})
	th.on(t, 2, "ctr -n site tasks kill -s SIGKILL app; systemctl disable --now containerd")
}

// ownContainerd gives the worker the bundle's containerd and runc where a distribution has them, and starts a
// container with them. It returns the process of the container.
func (th *thread) ownContainerd(t *testing.T) string {
	t.Helper()
	for name, line := range map[string]string{
		"containerd": "tar xz -C /usr",
		"runc":       "cat >/usr/sbin/runc && chmod 0755 /usr/sbin/runc",
	} {
		file := filepath.Join(th.dir, "own-"+name)
		th.connected(t, "extract", th.bundle(), name, "-o", file).must(t, 0)
		th.feedFile(t, 2, file, line)
	}
	th.on(t, 2, `mkdir -p /etc/containerd && printf '`+strings.ReplaceAll(siteConfig, "\n", `\n`)+`' >/etc/containerd/config.toml
		printf '[Service]\nType=notify\nDelegate=yes\nKillMode=process\nExecStart=/usr/bin/containerd\n[Install]\nWantedBy=multi-user.target\n' >/lib/systemd/system/containerd.service
		systemctl daemon-reload && systemctl enable --now containerd`)
	image := filepath.Join(th.dir, "own-image.tar")
	th.connected(t, "extract", th.bundle(), "docker.io/lab/labapp:1", "--format", "docker-archive", "--platform",
		"linux/amd64", "-o", image).must(t, 0)
	th.feedFile(t, 2, image, "ctr -n site images import -")
	th.on(t, 2, "ctr -n site run -d docker.io/lab/labapp:1 app /labapp sleep")
	pid := strings.TrimSpace(th.on(t, 2, "ctr -n site tasks ls 2>/dev/null | awk '$1 == \"app\" {print $2}'"))
	if pid == "" {
		t.Fatal("the container does not run")
	}
	return pid
}

// siteContainer checks that the worker's own container is the process that it was.
func (th *thread) siteContainer(t *testing.T, pid string) {
	t.Helper()
	if got := th.on(t, 2, "ctr -n site tasks ls 2>/dev/null"); !strings.Contains(got, pid) ||
		!strings.Contains(got, "RUNNING") {
		t.Errorf("the site's container is not what it was (%s):\n%s", pid, got)
	}
	th.on(t, 2, "test -d /proc/"+pid)
}

// feedFile gives a shell line on a host a file as its input.
func (th *thread) feedFile(t *testing.T, number int, file, line string) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }() // only read
	th.feed(t, number, line, in)
}
