package hosts

import (
	"context"
	"errors"
	"slices"
)

// Upgrade brings a host that Provision has made a node to the version of its cluster in place. patches is the directory
// on the host with kubeadm's patches, "" for none; the document of w, which may be empty, writes files there first. A
// host that is another owner's, or that the version must not be brought to, is refused and stays as it is; a repeated
// run continues.
func (o *Operator) Upgrade(ctx context.Context, w Work, patches string) (Done, error) {
	var flags []string
	if patches != "" {
		flags = append(flags, "--patches", patches)
	}
	return o.upgradeMachine(ctx, w, flags...)
}

// CheckUpgrade returns the error by which Upgrade would refuse a host or the document, or not reach the host, which
// stays as it is.
func (o *Operator) CheckUpgrade(ctx context.Context, w Work) (Done, error) {
	return o.upgradeMachine(ctx, w, "--check")
}

func (o *Operator) upgradeMachine(ctx context.Context, w Work, flags ...string) (done Done, err error) {
	dir, err := o.open(w.Host)
	if err != nil {
		return Done{}, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	args := slices.Concat([]string{"upgrade-machine", "--owner", w.Host.Owner}, dir.connection(w.Host))
	if args, err = dir.bundled(args, w); err != nil {
		return Done{}, err
	}
	if len(w.Document) > 0 {
		flags = append(flags, "--files", "-")
	}
	args = slices.Concat(args, flags, []string{"--", w.Host.Name, w.Bundle.Path})
	_, err = o.Runner.Run(ctx, Call{Args: args, Stdin: w.Document, Progress: func(Event) {}})
	return dir.done(), err
}

// bundled adds what a run with a bundle needs: the values of the cluster, and the policy for signatures.
func (d runDir) bundled(args []string, w Work) ([]string, error) {
	settings, err := d.settings(w.Cluster)
	if err != nil {
		return nil, err
	}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	policy, err := d.policy(w.Bundle.Trust, w.Bundle.RequireSignature)
	// Each KKCluster names its bundle: that another one has a newer bundle of the same name is no reason to refuse it.
	return slices.Concat(args, policy, []string{"--allow-older"}), err
}
