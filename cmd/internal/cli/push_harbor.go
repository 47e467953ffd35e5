package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/plain"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// harborFlags are for settings of Harbor.
type harborFlags struct {
	public           bool
	quota            usage.Size
	robot, robotFile string
}

func (h *harborFlags) add(f *pflag.FlagSet) {
	h.quota.Least = 1
	f.BoolVar(&h.public, "harbor-public", false, "Harbor: create public projects (default private)")
	f.Var(&h.quota, "harbor-quota", "Harbor: storage quota of created projects, such as 50GiB (default Harbor's)")
	f.StringVar(&h.robot, "harbor-robot", "", "Harbor: create a robot account of this name with pull access to the projects; its secret is shown once")
	f.StringVar(&h.robotFile, "robot-file", "", "write the robot account's name and secret to this file (0600) instead of showing them")
}

func (h *harborFlags) check() error {
	if h.robot == "" && h.robotFile != "" {
		return usage.Errorf("--robot-file needs --harbor-robot NAME")
	}
	if h.robot == "" {
		return nil
	}
	if err := harbor.CheckRobot(h.robot); err != nil {
		return usage.Errorf("--harbor-robot: %w", err)
	}
	if h.robotFile != "" {
		return disk.CheckOutput(h.robotFile)
	}
	return nil
}

func (h *harborFlags) options() *registry.HarborOptions {
	return &registry.HarborOptions{Public: h.public, Quota: h.quota.Bytes, Robot: h.robot}
}

// handOver writes the robot account's secret to --robot-file or standard output, never to a log. If the file cannot be written, it
// prints the secret.
func (h *harborFlags) handOver(g *globals, sum *registry.PushSummary) error {
	if sum.Harbor == nil || sum.Harbor.Robot == nil {
		return nil
	}
	r := sum.Harbor.Robot
	if r.Secret == "" {
		g.Note("robot account %s was there already and may pull from all projects; Harbor tells no secret twice", r.Name)
		return nil
	}
	if h.robotFile != "" {
		data, err := json.Marshal(map[string]string{"name": r.Name, "secret": r.Secret})
		if err == nil {
			err = disk.WriteFile(h.robotFile, 0o600, bytes.NewReader(append(data, '\n')))
		}
		if err == nil {
			r.Secret = ""
			g.Note("robot account %s may pull; its secret is in %s", r.Name, h.robotFile)
			return nil
		}
		if g.JSON {
			return err // the document has the secret
		}
		return errors.Join(err, printRobot(g, r))
	}
	if g.JSON {
		return nil
	}
	return printRobot(g, r)
}

func printRobot(g *globals, r *registry.HarborRobot) error {
	g.Note("robot account that may pull, and its secret, which is not shown again:")
	_, err := fmt.Fprintf(g.Out, "%s %s\n", plain.Line(r.Name), plain.Line(r.Secret))
	return err
}
