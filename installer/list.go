package installer

import (
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A Listed is a task of an installation with its hosts.
type Listed struct {
	Phase string   `json:"phase"`
	Task  string   `json:"task"`
	Tags  []string `json:"tags"`
	// Hosts are the task's hosts, in order; none for the machine that kkbundle runs on.
	Hosts []string `json:"hosts"`
	// OneByOne means that the task runs on one host after the other.
	OneByOne bool `json:"oneByOne,omitempty"`
}

// List returns the selected tasks of an installation, in order. It asks no host.
func List(o engine.Options) ([]Listed, error) {
	phases, err := o.Selected(plan.Plan(o.Cluster))
	if err != nil {
		return nil, err
	}
	o.DryRun = true // create no work directory
	r, err := begin.NewFitting(o, engine.Installing())
	if err != nil {
		return nil, err
	}
	defer r.Dir.Close()
	if err := r.FindTargets(); err != nil {
		return nil, err
	}
	var list []Listed
	for _, p := range phases {
		for _, step := range p.Tasks {
			one := Listed{
				Phase: p.Name, Task: step.Name, Tags: engine.Tags(step),
				OneByOne: step.Where == task.OneByOne,
			}
			for _, t := range engine.TargetsOf(r.Site, step) {
				if t.Name != "" {
					one.Hosts = append(one.Hosts, t.Name)
				}
			}
			list = append(list, one)
		}
	}
	return list, nil
}
