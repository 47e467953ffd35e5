package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

type provisionOptions struct {
	site.Flags
	phases        []string
	owner         string
	dryRun, check bool
}

func newProvisionCmd(g *globals) *cobra.Command {
	var o provisionOptions
	o.ClusterOptional = true
	cmd := &cobra.Command{
		Use:   "provision -i INVENTORY HOST FILE [BUNDLE]",
		Short: "Apply a cloud-init or Ignition document to one host",
		Long: `Runs the steps of a bootstrap document on one host of the inventory, over SSH: #cloud-config of Cluster API's kubeadm
provider, or Ignition (spec 3 or 2). - reads it from standard input.

With a bundle, the host is prepared first, in phases named like the operations of CAPKK's KKInstance: bootstrap,
repository, binary, container-manager; then provisioning. Each step runs once for a document (bootcmd in every run);
the next run repeats a failed step. After the last step, /run/cluster-api/bootstrap-success.complete is written.
kkbundle reset --limit HOST reverts the phases.

--owner is for controllers: the host is marked as a machine of Cluster API, and a host with another mark, or with an
installation without one, is refused.

A part that is not supported is an error with its line. Guide, with the supported parts: docs/site/capkk.md.`,
		Example: `  kkbundle provision -i inventory.yaml node1 bootstrap.yaml site-1.4.0.kkb
  kubectl get secret node1-bootstrap -o go-template='{{.data.value|base64decode}}' | kkbundle provision -i inventory.yaml node1 -`,
		Args: takes("HOST", "FILE", "[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runProvision(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addAccept(f)
	f.StringSliceVar(&o.phases, "phase", nil, "only these `phases`")
	f.StringVar(&o.owner, "owner", "", "mark the host as this `machine` of Cluster API, NAMESPACE/CLUSTER/MACHINE")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes, and make none")
	f.BoolVar(&o.check, "check", false, "only read the document and print its steps")
	return cmd
}

func runProvision(ctx context.Context, g *globals, args []string, o provisionOptions) (err error) {
	owner, err := parseOwner(o.owner)
	if err != nil {
		return err
	}
	file, data, err := readDocument(g, args[1])
	if err != nil {
		return err
	}
	// Mistakes come before anything is opened; no address is known yet.
	program, err := parseProgram(file, data, anyHost(args[0]))
	if err != nil {
		return err
	}
	if o.check {
		for _, s := range program.Steps {
			if err := g.Result("%s", s); err != nil {
				return err
			}
		}
		return nil
	}
	g.trust.unrecorded = o.dryRun
	s, err := g.openAcceptedSite(ctx, o.Flags, first(args[2:]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if program, err = parseProgram(file, data, metadata(s.Inventory, args[0])); err != nil {
		return err
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Phases, options.DryRun, options.Progress = o.phases, o.dryRun, p.Event
	options.Owner = owner
	report, err := installer.Provision(ctx, options, args[0], program)
	p.Close()
	if err != nil {
		return err
	}
	g.NoteOutcome(report, o.dryRun)
	return nil
}

// parseOwner returns the value of --owner.
func parseOwner(text string) (task.Machine, error) {
	if text == "" {
		return "", nil
	}
	owner, err := task.ParseMachine(text)
	if err != nil {
		return "", usage.Errorf("--owner: %s", err)
	}
	return owner, nil
}

// readDocument reads a bootstrap document, which contains secret tokens. It returns a name for messages.
func readDocument(g *globals, file string) (name string, data []byte, err error) {
	if name = file; file == "-" {
		name = "standard input"
		data, err = io.ReadAll(io.LimitReader(g.In, document.MaxFileSize+1))
	} else {
		data, err = builder.ReadFile(file)
	}
	if err != nil {
		return "", nil, fmt.Errorf("bootstrap document: %w", err)
	}
	return name, data, nil
}

func parseProgram(file string, data []byte, host provision.Metadata) (*provision.Program, error) {
	program, err := provision.Parse(file, data, host)
	if err != nil {
		return nil, &builder.InputError{Err: err}
	}
	return program, nil
}

// anyHost stands for a host whose addresses are not known yet.
func anyHost(name string) provision.Metadata {
	return provision.Metadata{Hostname: name, IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()}
}

// metadata returns the hostname and the addresses of a host, for a document's templates. A host that the inventory
// lacks is refused later.
func metadata(inventory *manifest.Inventory, name string) provision.Metadata {
	for _, h := range inventory.Hosts() {
		if h.Name == name {
			return provision.Metadata{Hostname: name, IPv4: h.InternalIPv4, IPv6: h.InternalIPv6}
		}
	}
	return provision.Metadata{Hostname: name}
}
