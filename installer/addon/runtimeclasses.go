package addon

import (
	"context"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// RuntimeClasses is the name of the task and of the record of the cluster's RuntimeClass objects.
const RuntimeClasses = "runtime-classes"

// runtimeClassesTask creates a RuntimeClass for each further runtime of the nodes.
func runtimeClassesTask() task.Task {
	return manifestsTask(RuntimeClasses, func(_ context.Context, t *task.Host) (applied, error) {
		data, err := runtimeClassManifest(t.Site.Cluster.CRI.RuntimeClasses)
		return applied{name: RuntimeClasses, namespace: kube.SystemNamespace, data: data}, err
	})
}

func runtimeClassManifest(classes []manifest.RuntimeClass) ([]byte, error) {
	var objects []runtime.Object
	for _, r := range classes {
		o := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Handler: r.Name}
		if len(r.NodeSelector) > 0 {
			o.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{}}
			for name, value := range r.NodeSelector {
				o.Scheduling.NodeSelector[name] = string(value)
			}
		}
		objects = append(objects, o)
	}
	return kube.YAML(objects...)
}
