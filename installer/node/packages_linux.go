package node

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// packages queries the package manager for Probe.Packages.
func (c softwareCollector) packages(ctx context.Context) {
	names := slices.DeleteFunc(slices.Clone(c.probe.Packages), func(n string) bool { return !isPackageName(n) })
	if len(names) == 0 {
		return
	}
	switch {
	case c.find("dpkg-query") != "":
		// The exit code means only that some are not installed.
		out, err := c.run(ctx, append([]string{
			"dpkg-query", "--show",
			"--showformat=${db:Status-Status}\t${Package}\t${Version}\n", "--",
		}, names...)...)
		c.facts.Packages = c.installed(string(out), "installed", unlessRan(err))
	case c.find("rpm") != "":
		c.facts.Packages = c.installedRPM(ctx, names)
	case c.find("apk") != "":
		c.facts.Packages = map[string]string{}
		name := ""
		c.scan("/lib/apk/db/installed", func(line string) { // P: is before V: in each paragraph
			if n, ok := strings.CutPrefix(line, "P:"); ok {
				name = n
			}
			if version, ok := strings.CutPrefix(line, "V:"); ok && slices.Contains(names, name) {
				c.facts.Packages[name] = version
			}
		})
	}
}

// installedRPM also finds packages under another name: in Red Hat's release 9, iptables and ebtables are iptables-nft.
func (c softwareCollector) installedRPM(ctx context.Context, names []string) map[string]string {
	query := func(names []string, options ...string) map[string]string {
		out, err := c.run(ctx, slices.Concat([]string{"rpm", "--query"}, options, []string{"--"}, names)...)
		return c.installed(string(out), "rpm", unlessRan(err))
	}
	found := query(names, "--queryformat", "rpm\t%{NAME}\t%{VERSION}-%{RELEASE}\n")
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return found[name] != "" })
	if found == nil || len(missing) == 0 {
		return found
	}
	provided := query(missing, "--whatprovides", "--queryformat", "[rpm\t%{PROVIDENAME}\t%{=VERSION}-%{=RELEASE}\n]")
	for _, name := range missing {
		if version := provided[name]; version != "" {
			found[name] = version
		}
	}
	return found
}

// installed parses lines of a state, a name and a version.
func (c softwareCollector) installed(text, state string, err error) map[string]string {
	if err != nil {
		c.problem("packages", err)
		return nil
	}
	found := map[string]string{}
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 && f[0] == state {
			found[f[1]] = f[2]
		}
	}
	return found
}

// unlessRan returns the error of a program that did not exit by itself.
func unlessRan(err error) error {
	var ended interface{ ExitCode() int }
	if errors.As(err, &ended) && ended.ExitCode() >= 0 {
		return nil
	}
	return err
}

// isPackageName excludes options and patterns from a package manager's command line.
func isPackageName(name string) bool {
	return name != "" && !strings.HasPrefix(name, "-") && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-._:", r)
	}) < 0
}

// sshd queries the SSH server's configuration, as it applies to root from anywhere.
func (c softwareCollector) sshd(ctx context.Context) {
	program := c.find("sshd")
	if program == "" || c.facts.UID != 0 {
		return // only root can read its keys, without which it prints nothing
	}
	out, err := c.run(ctx, program, "-T", "-C", "user=root,host=localhost,addr=127.0.0.1")
	if err != nil {
		first, _, _ := strings.Cut(string(out), "\n")
		c.problem("sshd -T", errors.New(err.Error()+": "+strings.TrimSpace(first)))
		return
	}
	s := &SSHD{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "kexalgorithms":
			s.KexAlgorithms = strings.Split(value, ",")
		case "ciphers":
			s.Ciphers = strings.Split(value, ",")
		case "macs":
			s.MACs = strings.Split(value, ",")
		case "hostkeyalgorithms":
			s.HostKeyAlgorithms = strings.Split(value, ",")
		case "allowtcpforwarding":
			s.AllowTCPForwarding = value
		case "permitrootlogin":
			s.PermitRootLogin = value
		}
	}
	c.facts.SSHD = s
}
