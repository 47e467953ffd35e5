package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Requests returns requests for a container. It panics if a quantity cannot be parsed.
func Requests(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}
}

// HTTPProbe returns a probe of host, or of the pod's address if host is "".
func HTTPProbe(host, path string, port int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Host: host, Path: path,
		Port: intstr.FromInt32(port),
	}}}
}

// HostVolume returns a volume for a path of the host. The kind "" accepts any type.
func HostVolume(name, path string, kind corev1.HostPathType) corev1.Volume {
	source := &corev1.HostPathVolumeSource{Path: path}
	if kind != "" {
		source.Type = &kind
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: source}}
}

// ConfigVolume returns a volume with the files of a ConfigMap.
func ConfigVolume(name string, source corev1.ConfigMapVolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &source}}
}
