package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/engine"
)

// taskList is the JSON output of install --list.
type taskList struct {
	Version int                `json:"version"` // 1
	Tasks   []installer.Listed `json:"tasks"`
}

// listTasks prints the tasks of an installation in order.
func (g *globals) listTasks(o engine.Options) error {
	list, err := installer.List(o)
	if err != nil {
		return err
	}
	if g.JSON {
		return json.NewEncoder(g.Out).Encode(taskList{Version: 1, Tasks: list})
	}
	w := tabwriter.NewWriter(g.Out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "PHASE\tTASK\tHOSTS\tTAGS") // Flush returns the error
	for _, one := range list {
		hosts := strings.Join(one.Hosts, " ")
		switch {
		case hosts == "":
			hosts = "(this machine)"
		case one.OneByOne && len(one.Hosts) > 1:
			hosts += " (one by one)"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", one.Phase, one.Task, hosts, strings.Join(one.Tags, " "))
	}
	return w.Flush()
}
