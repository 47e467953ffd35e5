package installer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	where := map[task.Where]string{
		task.Each: "each", task.OneByOne: "one by one", task.First: "first",
		task.Here: "here", task.Reached: "reached",
	}
	for _, phase := range plan.Plan(tasktest.Cluster(t, "addons: [{chart: demo, release: shop, namespace: shop}]")) {
		fmt.Fprintf(&b, "%s\n", phase.Name)
		for _, task := range phase.Tasks {
			kind := "task"
			if task.Done == nil {
				kind = "check"
			}
			fmt.Fprintf(&b, "  %s %s: %s %v\n", kind, task.Name, where[task.Where], task.Roles)
			for _, f := range task.Files {
				fmt.Fprintf(&b, "    file %s %s -> %s %04o\n", f.Component, f.Member, f.Path, f.Mode)
			}
			for _, name := range task.Images {
				fmt.Fprintf(&b, "    image %s\n", name)
			}
			for _, name := range task.Charts {
				fmt.Fprintf(&b, "    chart %s\n", name)
			}
		}
	}
	b.WriteString("needs\n")
	for _, n := range plan.Needs(tasktest.Cluster(t, "")) {
		fmt.Fprintf(&b, "  %s %s\n", n.Kind, n.Name)
	}
	tasktest.Golden(t, "plan.txt", []byte(b.String()))
}
