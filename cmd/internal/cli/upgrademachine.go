package cli

import (
	"context"
	"errors"
	"path"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/upgrade"
)

type upgradeMachineOptions struct {
	site.Flags
	owner, patches, files string
	check                 bool
}

func newUpgradeMachineCmd(g *globals) *cobra.Command {
	var o upgradeMachineOptions
	cmd := &cobra.Command{
		Use:   "upgrade-machine -i INVENTORY HOST BUNDLE",
		Short: "Upgrade one machine of Cluster API in place",
		Long: `Brings a host that provision has made a node to the bundle's release of Kubernetes in place: kubeadm upgrade node, the
container runtime, then the kubelet. It is for controllers, which drain the node before, and upgrade control planes
before workers; kkbundle upgrade does all of that for clusters of kkbundle install.

A host without the mark of --owner is refused, and so is one that would skip a minor release, a control plane whose
cluster has another version in kubeadm-config, and a worker whose API server is older. The same command again continues.
--files brings kubeadm's patches: settings of the kubelet, arguments of static pods.
--check ends before any change: a controller knows before the drain whether the host is reached and not refused.

Guide: docs/site/capkk.md.`,
		Example: `  kkbundle upgrade-machine -i inventory.yaml --owner site/prod/prod-md-0-x7k2p node1 site-1.5.0.kkb`,
		Args:    takes("HOST", "BUNDLE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runUpgradeMachine(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addAccept(f)
	f.StringVar(&o.owner, "owner", "", "refuse a host that is not this `machine` of Cluster API, NAMESPACE/CLUSTER/MACHINE")
	f.StringVar(&o.patches, "patches", "", "`directory` on the host with kubeadm's patches")
	f.StringVar(&o.files, "files", "", "write the files of this `document` of cloud-init, with write_files alone, before kubeadm runs (- is standard input)")
	f.BoolVar(&o.check, "check", false, "only tell whether the host may be upgraded; it stays as it is")
	return cmd
}

func runUpgradeMachine(ctx context.Context, g *globals, args []string, o upgradeMachineOptions) (err error) {
	owner, err := parseOwner(o.owner)
	if err != nil {
		return err
	}
	if o.patches != "" && !path.IsAbs(o.patches) {
		return usage.Errorf("--patches %s: want an absolute path of the host", o.patches)
	}
	write := func(provision.Metadata) ([]provision.File, error) { return nil, nil }
	if o.files != "" {
		file, data, err := readDocument(g, o.files)
		if err != nil {
			return err
		}
		write = func(host provision.Metadata) ([]provision.File, error) { return filesOf(file, data, host) }
	}
	if _, err := write(anyHost(args[0])); err != nil { // mistakes come before anything is opened
		return err
	}
	s, err := g.openAcceptedSite(ctx, o.Flags, args[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	patches := upgrade.Patches{Dir: o.patches}
	if patches.Files, err = write(metadata(s.Inventory, args[0])); err != nil {
		return err
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Progress, options.Owner = p.Event, owner
	var report engine.Report
	if o.check {
		report, err = upgrade.CheckMachine(ctx, options, args[0])
	} else {
		report, err = upgrade.Machine(ctx, options, args[0], patches)
	}
	p.Close()
	if err != nil {
		return err
	}
	g.NoteOutcome(report, false)
	return nil
}

// filesOf returns the files of a document of cloud-init, which must have nothing else.
func filesOf(name string, data []byte, host provision.Metadata) ([]provision.File, error) {
	program, err := parseProgram(name, data, host)
	if err != nil {
		return nil, err
	}
	var files []provision.File
	for _, step := range program.Steps {
		f, ok := step.(provision.File)
		if !ok || f.Append {
			return nil, usage.Errorf("--files %s: %q is not to write a whole file", name, step)
		}
		files = append(files, f)
	}
	return files, nil
}
