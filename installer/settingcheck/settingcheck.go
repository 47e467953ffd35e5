// Package settingcheck asks Kubernetes' own programs whether they start with the settings of a cluster file.
//
// Programs do not start with arguments and feature gates that their release does not have. On a host, that ends an
// installation halfway. So the programs that a host would get are asked on this machine: each runs in a sandbox with
// the settings of the cluster file, and ends before it does anything. Their help would not do: it lists no gates that
// are generally available, and no deprecated flags, and the programs take both. The kubelet also gets its
// configuration as a whole. kube-proxy cannot be asked: it wants to watch the file of its configuration, which the
// sandbox refuses.
package settingcheck

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/charts/sandbox"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/manifest"
)

// programTime is longer than a program takes to read its arguments, on a busy machine.
const programTime = 30 * time.Second

const kubelet = "kubelet"

// An Answer has what the programs of a release say.
type Answer struct {
	// Refused are problems of the cluster file, one for each setting that a program refuses.
	Refused []error
	// Unasked has a *UnaskedError for each question that got no answer.
	Unasked []error
}

// Err joins the refusals.
func (a Answer) Err() error { return errors.Join(a.Refused...) }

// An UnaskedError means that a program could not be asked.
type UnaskedError struct {
	Program, Version string
	Subject          string // of the question
	Err              error
}

// Error names the program and the reason.
func (e *UnaskedError) Error() string {
	return fmt.Sprintf("%s %s could not be asked whether it takes %s (%v)", e.Program, e.Version, e.Subject, e.Err)
}

// Unwrap returns the reason.
func (e *UnaskedError) Unwrap() error { return e.Err }

// A setting is an argument for a program, with its place in the cluster file.
type setting struct {
	path, argument string
}

// settingsOf returns the cluster file's settings by program.
func settingsOf(c *manifest.Cluster) map[string][]setting {
	all := map[string][]setting{}
	if c.Kubernetes.Distribution != manifest.DistributionKubernetes {
		return nil // k3s has its programs in one
	}
	for _, a := range c.Kubernetes.Arguments() {
		all[a.Program] = append(all[a.Program], setting{a.Path, "--" + a.Name + "=" + a.Value})
	}
	for _, g := range c.Kubernetes.FeatureGates() {
		if g.Program == kubelet {
			all[kubelet] = append(all[kubelet], setting{g.Path, "--feature-gates=" + g.Name + "=" + g.Value})
		}
	}
	return all
}

// Programs returns the programs of a cluster that get settings of its file. The cluster has its defaults.
func Programs(c *manifest.Cluster) []string {
	all := settingsOf(c)
	var names []string
	for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", kubelet} {
		if len(all[program]) > 0 || program == kubelet && all != nil && len(c.Kubernetes.Kubelet) > 0 {
			names = append(names, program)
		}
	}
	return names
}

// Ask asks the programs of a cluster's release whether they take its settings. Programs without settings are not
// asked. Once ctx is done, the answer is incomplete.
func Ask(ctx context.Context, c *manifest.Cluster, from Contents) Answer {
	var a Answer
	all := settingsOf(c)
	for _, name := range Programs(c) {
		p := program{name, c, from}
		unasked := func(subject string, err error) {
			if err != nil {
				a.Unasked = append(a.Unasked, &UnaskedError{name, c.Kubernetes.Version, subject, err})
			}
		}
		if settings := all[name]; len(settings) > 0 && ctx.Err() == nil {
			refused, err := p.refused(ctx, settings)
			unasked("the cluster's settings", err)
			for _, r := range refused {
				a.Refused = append(a.Refused, c.Problem(r.path, fmt.Sprintf("%s %s does not start with %s: %s", name,
					c.Kubernetes.Version, r.argument, r.reason)))
			}
		}
		if name == kubelet && len(c.Kubernetes.Kubelet) > 0 && ctx.Err() == nil {
			// kubeadm does not look at the values of the kubelet's configuration.
			reason, err := p.refusedConfig(ctx)
			unasked("its configuration", err)
			if reason != "" {
				a.Refused = append(a.Refused, c.Problem("kubernetes.kubelet",
					fmt.Sprintf("kubelet %s does not start with this: %s", c.Kubernetes.Version, reason)))
			}
		}
	}
	return a
}

// refusedConfig returns why the kubelet does not take its configuration, "" if it does. One that does not take it
// without the cluster file's section either cannot be asked: it needs something of a host.
func (p program) refusedConfig(ctx context.Context) (reason string, err error) {
	without := *p.cluster
	without.Kubernetes.Kubelet = nil
	for _, one := range []*manifest.Cluster{p.cluster, &without} {
		config, err := kubeadm.KubeletConfig(one)
		if err != nil {
			return "", err
		}
		now, err := p.complainsOfConfig(ctx, config)
		switch {
		case err != nil || one == p.cluster && now == "":
			return "", err
		case one == p.cluster:
			reason = now
		case now != "":
			return "", errors.New(now)
		}
	}
	return reason, nil
}

// complainsOfConfig runs the kubelet with a configuration, which it checks before it looks at its host. It returns
// what it says of the configuration, but for feature gates, which refused asks for.
func (p program) complainsOfConfig(ctx context.Context, config []byte) (reason string, err error) {
	content, err := p.open(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	const file = "config.yaml"
	_, err = sandbox.Program{
		Name: p.name, Content: content, Files: map[string][]byte{file: config}, Args: []string{"--config=" + file},
		Limit: programTime,
	}.Run(ctx)
	failed, ran := errors.AsType[*sandbox.FailedError](err)
	if !ran {
		return "", err
	}
	words := regexp.MustCompile(
		`(?:failed to validate kubelet configuration, error: (.+), path: &TypeMeta|failed to decode: (.+)"\n)`,
	).FindStringSubmatch(failed.Stderr)
	switch {
	case words != nil:
		return strings.ReplaceAll(words[1]+words[2], `\"`, `"`), nil
	case strings.Contains(failed.Stderr, `"command failed"`), // for want of a host
		complaint().MatchString(failed.Stderr):
		return "", nil
	}
	return "", failed
}

// A refusal is a setting that a program does not take, and the program's own word.
type refusal struct {
	setting
	reason string
}

// refused returns the settings that the program refuses.
func (p program) refused(ctx context.Context, settings []setting) ([]refusal, error) {
	var args []string
	for _, s := range settings {
		args = append(args, s.argument)
	}
	all, err := p.complains(ctx, args)
	_, unclear := errors.AsType[*sandbox.FailedError](err) // warnings of many settings are more than what is kept
	if !unclear && (err != nil || all == "") {
		return nil, err
	}
	var list []refusal
	for _, s := range settings {
		reason, err := p.complains(ctx, []string{s.argument})
		if err != nil {
			return nil, err
		}
		if reason != "" {
			list = append(list, refusal{s, reason})
		}
	}
	if list == nil && !unclear { // they do not go together
		list = append(list, refusal{setting{settings[0].path, strings.Join(args, " ")}, all})
	}
	return list, nil
}

// complains runs the program with arguments, and returns its reason for not starting with them, "" if it takes them.
func (p program) complains(ctx context.Context, args []string) (reason string, err error) {
	content, err := p.open(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	if p.name == kubelet {
		// It sets the gates of its arguments, then reads its configuration, of which there is none.
		args = append(slices.Clone(args), "--config=none")
	} else {
		args = append(slices.Clone(args), "--version")
	}
	_, err = sandbox.Program{Name: p.name, Content: content, Args: args, Limit: programTime}.Run(ctx)
	failed, ran := errors.AsType[*sandbox.FailedError](err)
	if !ran {
		return "", err
	}
	word := complaint().FindString(failed.Stderr)
	switch {
	case word != "":
		return strings.TrimRight(word, `\"`), nil
	case p.name == kubelet && strings.Contains(failed.Stderr, "config file"):
		return "", nil
	}
	return "", failed
}

// complaint matches what the flag libraries of Kubernetes' programs say of an argument.
func complaint() *regexp.Regexp {
	return regexp.MustCompile(
		`(?:unknown flag|unrecognized feature gate): [\w.-]+|cannot set feature gate [^"\n]+|invalid argument [^\n]+|feature gate [^"\n]+ is locked[^"\n]*`)
}
