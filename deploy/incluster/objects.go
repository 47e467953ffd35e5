package incluster

import (
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	name = "kkbundle-registry"
	// of the registry's pod alone: a kubelet may read each Secret that a pod of its node refers to
	secretName     = name + "-server"
	authorityName  = name + "-authority" // of the proxies, on every node
	earlierSecret  = name                // of releases whose proxies referred to the Secret, too
	manager        = "kkbundle"
	managedBy      = "app.kubernetes.io/managed-by"
	componentLabel = "app.kubernetes.io/component"
	nameLabel      = "app.kubernetes.io/name"
	controlPlane   = "node-role.kubernetes.io/control-plane"
	sumAnnotation  = "kkbundle.io/secret"

	pullPort = 5443 // of the registry's pod, over TLS
	pushPort = 5000 // on its loopback address only

	user          = 65532 // of the registry with a volume claim, and of the proxies
	dataPath      = mounts + "data"
	filePath      = mounts + "secret"
	authorityPath = mounts + "authority"
)

// A plan is all that the registry's objects depend on.
type plan struct {
	namespace string
	port      int
	clusterIP string
	images    []borrowed // the registry runs on the first's architecture
	programs  programSet
	secret    secret
	storage   storage
}

func (p *plan) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

func (p *plan) without() []string {
	var list []string
	for _, b := range p.images {
		list = append(list, b.without...)
	}
	return list
}

func labels(component string) map[string]string {
	return map[string]string{managedBy: manager, nameLabel: name, componentLabel: component}
}

func meta(namespace, objectName, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: objectName, Labels: labels(component)}
}

// namespaceObject permits pods in the nodes' network, which the proxies are.
func namespaceObject(namespace string) *corev1.Namespace {
	n := &corev1.Namespace{TypeMeta: kind("v1", "Namespace"), ObjectMeta: meta("", namespace, "namespace")}
	// the cluster's defaults would warn of pods that enforce permits
	for _, mode := range []string{"enforce", "warn", "audit"} {
		n.Labels["pod-security.kubernetes.io/"+mode] = "privileged"
	}
	return n
}

func kind(version, k string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: version, Kind: k} }

func (p *plan) service() *corev1.Service {
	return &corev1.Service{
		TypeMeta: kind("v1", "Service"), ObjectMeta: meta(p.namespace, name, "registry"),
		Spec: corev1.ServiceSpec{
			Selector: labels("registry"),
			Ports: []corev1.ServicePort{{
				Name: "https", Port: pullPort, TargetPort: intstr.FromInt32(pullPort),
				Protocol: corev1.ProtocolTCP,
			}},
		},
	}
}

func (p *plan) claim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta: kind("v1", "PersistentVolumeClaim"), ObjectMeta: meta(p.namespace, name, "registry"),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new(p.storage.class),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: p.storage.size},
			},
		},
	}
}

// configMaps returns the programs' parts, those of the registry for its own architecture only.
func (p *plan) configMaps() []*corev1.ConfigMap {
	var list []*corev1.ConfigMap
	for i, b := range p.images {
		for _, one := range p.programs[b.arch].all(i == 0) {
			list = append(list, &corev1.ConfigMap{
				TypeMeta: kind("v1", "ConfigMap"), ObjectMeta: meta(p.namespace, one.name, programs),
				Immutable: new(true), BinaryData: map[string][]byte{one.key: one.data},
			})
		}
	}
	return list
}

// authority returns the object of the proxies: what they read is public.
func (p *plan) authority() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: kind("v1", "ConfigMap"), ObjectMeta: meta(p.namespace, authorityName, "authority"),
		Data: map[string]string{keyAuthority: string(p.secret[keyAuthority])},
	}
}

// mountedFiles are files of a pod: a volume, the directory where it is mounted, and the sum of the content.
type mountedFiles struct {
	corev1.Volume
	path, sum string
}

// template is the common part of the pods: a borrowed image with nothing of it executed, and files that start the pod
// again when their sum changes.
func (p *plan) template(component string, b borrowed, withRegistry bool, files mountedFiles) corev1.PodTemplateSpec {
	volumes, at := volumes(p.programs[b.arch].all(withRegistry))
	volumes = append(volumes, files.Volume,
		corev1.Volume{
			Name: "run",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse(
				"256Mi"))}},
		})
	at = append(at, corev1.VolumeMount{Name: files.Name, MountPath: files.path, ReadOnly: true},
		corev1.VolumeMount{Name: "run", MountPath: runDir})
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      labels(component),
			Annotations: map[string]string{sumAnnotation: files.sum},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			EnableServiceLinks:           new(false),
			NodeSelector: map[string]string{
				corev1.LabelArchStable: b.arch,
				corev1.LabelOSStable:   "linux",
			},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)),
				FSGroup:        new(int64(user)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: component, Image: b.image, ImagePullPolicy: corev1.PullIfNotPresent,
				VolumeMounts: at,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
			Volumes: volumes,
		},
	}
}

func (p *plan) deployment() *appsv1.Deployment {
	b := p.images[0]
	t := p.template("registry", b, true,
		mountedFiles{corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: secretName, DefaultMode: new(int32(0o440)), Items: items(keyPushers, keyPullers, keyCert,
				keyKey),
		}}}, filePath, p.secret.sum()})
	pod, c := &t.Spec, &t.Spec.Containers[0]
	c.Command = p.programs[b.arch].registryCommand("-dir", dataPath,
		"-users", filePath+"/"+keyPushers, "-pullers", filePath+"/"+keyPullers,
		"-certificate", filePath+"/"+keyCert, "-key", filePath+"/"+keyKey,
		"-pull", ":"+strconv.Itoa(pullPort), "-push", net.JoinHostPort("127.0.0.1", strconv.Itoa(pushPort)))
	c.Ports = []corev1.ContainerPort{{Name: "https", ContainerPort: pullPort, Protocol: corev1.ProtocolTCP}}
	health := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/healthz", Port: intstr.FromInt32(pullPort),
		Scheme: corev1.URISchemeHTTPS,
	}}
	c.StartupProbe = &corev1.Probe{ProbeHandler: health, PeriodSeconds: 2, FailureThreshold: 90, TimeoutSeconds: 5}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: health, PeriodSeconds: 5, FailureThreshold: 3, TimeoutSeconds: 5}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: health, PeriodSeconds: 20, FailureThreshold: 6, TimeoutSeconds: 10}
	c.Resources.Requests = requests("50m", "64Mi")
	pod.Tolerations = []corev1.Toleration{{Key: controlPlane, Operator: corev1.TolerationOpExists}}
	data := corev1.Volume{
		Name: "data",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		},
	}
	if p.storage.node != "" {
		data.VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
			Path: NodeDirectory, Type: new(corev1.HostPathDirectoryOrCreate),
		}}
		pod.NodeSelector[corev1.LabelHostname] = p.storage.node
		// The kubelet creates the directory for root alone. Root without any capability is only the owner of files.
		pod.SecurityContext.RunAsUser, pod.SecurityContext.RunAsGroup = new(int64(0)), new(int64(0))
		pod.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsNonRoot = new(false), new(false)
	}
	pod.Volumes = append(pod.Volumes, data)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: dataPath})
	return &appsv1.Deployment{
		TypeMeta: kind("apps/v1", "Deployment"), ObjectMeta: meta(p.namespace, name, "registry"),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			// two cannot write to one directory
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: labels("registry")},
			Template: t,
		},
	}
}

// proxies returns one DaemonSet for each architecture.
func (p *plan) proxies() []*appsv1.DaemonSet {
	var list []*appsv1.DaemonSet
	for _, b := range p.images {
		component := "proxy-" + b.arch
		t := p.template(component, b, false,
			mountedFiles{corev1.Volume{
				Name: "authority",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: authorityName},
					DefaultMode:          new(int32(0o444)),
				}},
			}, authorityPath, secret{keyAuthority: p.secret[keyAuthority]}.sum()})
		pod, c := &t.Spec, &t.Spec.Containers[0]
		pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSDefault
		pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		c.Command = p.programs[b.arch].command("forward", p.address(),
			net.JoinHostPort(p.clusterIP, strconv.Itoa(pullPort)), authorityPath+"/"+keyAuthority)
		c.Ports = []corev1.ContainerPort{{
			Name: "registry", ContainerPort: int32(p.port), HostPort: int32(p.port), HostIP: "127.0.0.1",
			Protocol: corev1.ProtocolTCP,
		}}
		c.ReadinessProbe = &corev1.Probe{
			PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3,
			ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{
					Host: "127.0.0.1", Path: "/healthz",
					Port: intstr.FromInt32(int32(p.port)),
				},
			},
		}
		c.Resources.Requests = requests("10m", "24Mi")
		unavailable := intstr.FromString("25%")
		list = append(list, &appsv1.DaemonSet{
			TypeMeta: kind("apps/v1", "DaemonSet"), ObjectMeta: meta(p.namespace, name+"-"+component, component),
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels(component)},
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
					Type:          appsv1.RollingUpdateDaemonSetStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable},
				},
				Template: t,
			},
		})
	}
	return list
}

func items(keys ...string) []corev1.KeyToPath {
	var list []corev1.KeyToPath
	for _, k := range keys {
		list = append(list, corev1.KeyToPath{Key: k, Path: k})
	}
	return list
}

func requests(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
	}
}
