// Command program stands in for programs of Kubernetes v1.36.3. It reads arguments as they do, and says what they
// said: of kube-apiserver on standard error with exit code 1, of the kubelet as a line of its log.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	kubelet := filepath.Base(os.Args[0]) == "kubelet"
	fail := func(word string) {
		if kubelet {
			_, _ = fmt.Fprintf(os.Stderr, "E1127 22:00:00.000000       1 run.go:72] \"command failed\" err=%q\n", word)
		} else {
			_, _ = fmt.Fprintln(os.Stderr, "Error: "+word)
		}
		os.Exit(1)
	}
	for _, arg := range os.Args[1:] {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "feature-gates":
			if gate, to, _ := strings.Cut(value, "="); gate != "KubeletInUserNamespace" && gate != "SidecarContainers" {
				if kubelet {
					fail("failed to set feature gates from initial flags-based config: unrecognized feature gate: " +
						gate)
				}
				fail(`invalid argument "` + value + `" for "--feature-gates" flag: unrecognized feature gate: ` + gate)
			} else if gate == "SidecarContainers" && to == "false" {
				fail("cannot set feature gate SidecarContainers to false, feature is locked to true")
			}
		case "v", "version", "config":
		default:
			fail("unknown flag: --" + name)
		}
	}
	config, err := os.ReadFile("config.yaml")
	says := func(text string) bool { return strings.Contains("\n"+string(config), "\n"+text+"\n") }
	switch {
	case kubelet && err != nil:
		fail("failed to load kubelet config file, path: none, error: failed to read kubelet config file \"none\"")
	case kubelet && !says("failCgroupV1: false"):
		fail("failed to validate kubelet configuration, error: kubelet is configured to not run on a host using cgroup v1, path: &TypeMeta{Kind:,APIVersion:,}")
	case kubelet && says("hairpinMode: bogus"):
		fail(`failed to validate kubelet configuration, error: invalid configuration: option "bogus" specified for hairpinMode (--hairpin-mode). Valid options are "none", "hairpin-veth" or "promiscuous-bridge", path: &TypeMeta{Kind:,APIVersion:,}`)
	case kubelet && says("imageMinimumGCAge: x"):
		fail(`failed to load kubelet config file, path: config.yaml, error: failed to load Kubelet config file config.yaml, error failed to decode: time: invalid duration "x"`)
	case kubelet:
		fail("failed to construct kubelet dependencies: mkdir /var/lib/kubelet: permission denied")
	}
}
