package node

import (
	"path"
	"slices"
	"strings"
)

// unitProxies finds the proxies of units. kkbundle writes the units themselves; drop-ins of an earlier installation
// stay beside them.
func (c machineCollector) unitProxies() {
	add := func(u UnitProxy) {
		if len(u.Proxies) > 0 {
			c.facts.UnitProxies = append(c.facts.UnitProxies, u)
		}
	}
	all := UnitProxy{Unit: "all units"}
	c.readUnit(&all, "DefaultEnvironment", append([]string{"/etc/systemd/system.conf"},
		c.conf("/etc/systemd/system.conf.d")...))
	add(all)
	for _, name := range []string{
		"containerd", "docker", "crio", "kubelet", "k3s", "k3s-agent", "rke2-server",
		"rke2-agent",
	} {
		u := UnitProxy{Unit: name + ".service"}
		c.readUnit(&u, "Environment", c.dropIns(u.Unit))
		add(u)
	}
}

// conf returns the configuration files in a directory, in their order.
func (c machineCollector) conf(dir string) []string {
	var files []string
	for _, name := range c.list(dir) {
		if path.Ext(name) == ".conf" {
			files = append(files, path.Join(dir, name))
		}
	}
	slices.Sort(files)
	return files
}

// readUnit adds the proxies that a key of files sets (systemd.exec(5)), and environment files; an empty value takes
// back earlier ones.
func (c machineCollector) readUnit(u *UnitProxy, key string, files []string) {
	for _, file := range files {
		for line := range strings.Lines(joinLines(c.text(file))) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			switch {
			case !ok:
			case name == key && value == "":
				u.Proxies = nil
			case name == key:
				for _, word := range unitWords(value) {
					name, value, _ := strings.Cut(word, "=")
					u.set(name, value, file)
				}
			case name == "EnvironmentFile":
				from := strings.TrimPrefix(value, "-")
				for name, value := range shellValues(c.text(from)) {
					u.set(name, value, from)
				}
			}
		}
	}
}

// set records a variable if it is one of a proxy.
func (u *UnitProxy) set(name, value, file string) {
	name = strings.ToUpper(name)
	if !slices.Contains(proxyNames(), name) {
		return
	}
	put(&u.Proxies, name, withoutLogin(value))
	u.File = file
}

// proxyNames returns the variables of the environment that name proxies and what does not go through them.
func proxyNames() []string { return []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"} }

// unitWords splits a value of a unit into words, which may be in quotes.
func unitWords(value string) []string {
	var words []string
	word, quote, begun := "", rune(0), false
	for _, r := range value {
		switch {
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				words = append(words, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}
	if begun {
		words = append(words, word)
	}
	return words
}
