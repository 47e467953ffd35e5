package addon

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestWithoutForward(t *testing.T) {
	t.Parallel()
	const corefile = `.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
    }
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
    }
}
`
	const commented = removedNote + removedLine + "    forward . /etc/resolv.conf {\n" + removedLine +
		"       max_concurrent 1000\n" + removedLine + "    }\n"
	want := strings.Replace(corefile, "    forward . /etc/resolv.conf {\n       max_concurrent 1000\n    }\n",
		commented, 1)
	got := withoutForward(corefile)
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if again := withoutForward(want); again != want || forwardsToHost(want) || !forwardsToHost(corefile) {
		t.Errorf("a second time: %q", again)
	}
	if back := withForward(want); back != corefile {
		t.Errorf("put back: %q", back)
	}
	other := strings.Replace(corefile, "/etc/resolv.conf", "10.0.0.1", 1)
	if got := withoutForward(other); got != other || withForward(other) != other {
		t.Errorf("somebody's own name server: %q", got)
	}
	short := ".:53 {\n    forward . /etc/resolv.conf\n}\n"
	if got := withoutForward(short); got != ".:53 {\n"+removedNote+removedLine+"    forward . /etc/resolv.conf\n}\n" ||
		withForward(got) != short {
		t.Errorf("without braces: %q", got)
	}
}

func TestRuntimeClassObjects(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, `cri:
  runtimeClasses:
    - {name: nvidia, binary: /usr/bin/nvidia-container-runtime, nodeSelector: {nvidia.com/gpu.present: "true"}}
    - {name: kata, type: io.containerd.kata.v2}
`)
	got, err := runtimeClassManifest(c.CRI.RuntimeClasses)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "runtime-classes.yaml", got)
	if tasks := ServiceTasks(c); len(tasks) == 0 || tasks[0].Name != RuntimeClasses {
		t.Errorf("no task creates the objects: %+v", tasks)
	}
	if tasks := ServiceTasks(tasktest.Cluster(t, "")); len(tasks) > 0 {
		t.Errorf("without classes: %+v", tasks)
	}
}

// The cache on nodes sends the cluster's own names to the cluster's DNS, whatever their domain is.
func TestNodeDNSDomain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "cluster.local",
		"dns: {nodeLocal: true, domain: k8s.corp.example}\n": "k8s.corp.example",
	} {
		c := tasktest.Cluster(t, text)
		if f := nodeCorefile(c, true); !strings.HasPrefix(f, want+":53 {\n") ||
			strings.Contains(f, "cluster.local") != (text == "") {
			t.Errorf("%q:\n%s", text, f)
		}
	}
}
