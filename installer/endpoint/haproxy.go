package endpoint

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// haproxyName is the name of the task and of its static pod.
	haproxyName   = "haproxy"
	haproxyConfig = task.ConfigDir + "/haproxy.cfg"
	// haproxyCA is haproxy's own copy of the cluster's CA: haproxy is no root user, and a hardened node lets only
	// root read kube.ClusterCA.
	haproxyCA       = task.ConfigDir + "/haproxy-ca.crt"
	haproxyManifest = kube.ManifestsDir + "/haproxy.yaml"
	// haproxyHealth is haproxy's health port on the loopback interface, the same as KubeKey's.
	haproxyHealth = 8081
)

// HAProxyTask gives every worker that is not a control plane a proxy to all API servers, a static pod.
func HAProxyTask() task.Task {
	step := task.Settle(task.Task{
		Name:    haproxyName,
		Roles:   []manifest.Role{manifest.RoleWorker},
		Images:  []string{"haproxy"},
		Follows: true,
		Leaves:  task.Leaves{Paths: []string{haproxyConfig, haproxyCA}},
	}, haproxySetting)
	look := step.Done
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		if t.Is(manifest.RoleControlPlane) {
			return true, nil // its own API server is nearer
		}
		if joined, err := t.Test(ctx, "test", "-e", kube.ClusterCA); err != nil || !joined {
			return false, err
		}
		return look(ctx, t)
	}
	return step
}

func haproxySetting(ctx context.Context, t *task.Host) (task.Setting, error) {
	config, err := HAProxyConfig(t.Site)
	if err != nil {
		return task.Setting{}, err
	}
	ca, err := t.Read(ctx, kube.ClusterCA)
	if err != nil {
		return task.Setting{}, err
	}
	pod, err := HAProxyPod(t.Site, slices.Concat(config, ca))
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		// The pod's manifest last: its annotation has the digest of the others, so the kubelet replaces the pod when
		// one changes.
		Files: []task.File{
			{Path: haproxyConfig, Mode: 0o644, Data: config},
			{Path: haproxyCA, Mode: 0o644, Data: ca},
			{Path: haproxyManifest, Mode: 0o600, Data: pod},
		},
		Ready: func(ctx context.Context, t *task.Host) error {
			if err := staticPodRuns(ctx, t, haproxyName, task.File{Data: pod}); err != nil {
				return err
			}
			own := net.JoinHostPort(t.Site.Loopback().String(), strconv.Itoa(manifest.DefaultPort))
			return task.Eventually(ctx, endpointWait,
				func(ctx context.Context) error { return APIAnswers(ctx, t, own, ca) })
		},
	}, nil
}

// HAProxyConfig returns haproxy's configuration: connections go to the ready API server with the fewest connections.
// Health checks use TLS and verify the certificate against the cluster's CA and the name "kubernetes".
func HAProxyConfig(r *task.Site) ([]byte, error) {
	var b bytes.Buffer
	own := r.Loopback().String()
	fmt.Fprintf(&b, hostfile.Mark+"\n"+haproxyText, net.JoinHostPort(own, strconv.Itoa(haproxyHealth)),
		net.JoinHostPort(own, strconv.Itoa(manifest.DefaultPort)))
	for _, t := range r.WithRole(manifest.RoleControlPlane) {
		if !t.IP.IsValid() {
			return nil, &task.AddressError{Host: t.Name}
		}
		fmt.Fprintf(&b, "    server %s %s\n", t.Name, net.JoinHostPort(t.IP.String(),
			strconv.Itoa(manifest.DefaultPort)))
	}
	return b.Bytes(), nil
}

// Timeouts: a lost API server is dropped well within a kubelet's lease of 40 seconds. Watches last half an hour to an
// hour, but carry data about every minute.
//
//go:embed configs/haproxy.cfg
var haproxyText string

// HAProxyPod renders haproxy's static pod. files is the content of the mounted files.
func HAProxyPod(r *task.Site, files []byte) ([]byte, error) {
	image, err := catalog.ImageRef(r.Cluster, "haproxy")
	if err != nil {
		return nil, err
	}
	mount := func(name, path string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true}
	}
	return kube.StaticPod(haproxyName, files, corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: haproxyName, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:   []string{"haproxy", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"},
			Resources: kube.Requests("25m", "32Mi"),
			VolumeMounts: []corev1.VolumeMount{
				mount("config", "/usr/local/etc/haproxy/haproxy.cfg"),
				mount("ca", "/usr/local/etc/haproxy/ca.crt"),
			},
			LivenessProbe: kube.HTTPProbe(r.Loopback().String(), "/healthz", haproxyHealth),
		}},
		Volumes: []corev1.Volume{
			kube.HostVolume("config", haproxyConfig, corev1.HostPathFile),
			kube.HostVolume("ca", haproxyCA, corev1.HostPathFile),
		},
	})
}
