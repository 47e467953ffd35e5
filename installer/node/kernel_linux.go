package node

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// kernel reads the kernel's configuration, modules and settings.
func (c kernelCollector) kernel() {
	if len(c.probe.KernelConfig) > 0 || len(c.probe.Modules) > 0 {
		c.facts.KernelConfig = c.kernelConfig()
	}
	if len(c.probe.Modules) > 0 {
		c.modules()
		c.facts.InstalledKernels = c.installedKernels()
	}
	for _, key := range c.probe.Sysctls {
		name := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
		if strings.Contains(key, "..") {
			continue
		}
		if _, err := os.Stat(c.path(name)); err != nil {
			continue
		}
		put(&c.facts.Sysctls, key, strings.Join(strings.Fields(c.line(name)), " "))
	}
}

// moduleOption returns the kernel configuration option of a module, for machines without a list of modules, such as
// containers and virtual machines with a foreign kernel. Names: the Makefiles of Linux 6.12.
func moduleOption(module string) string {
	return map[string]string{
		"overlay":       "CONFIG_OVERLAY_FS",
		"br_netfilter":  "CONFIG_BRIDGE_NETFILTER",
		"vxlan":         "CONFIG_VXLAN",
		"geneve":        "CONFIG_GENEVE",
		"openvswitch":   "CONFIG_OPENVSWITCH",
		"dummy":         "CONFIG_DUMMY",
		"nf_conntrack":  "CONFIG_NF_CONNTRACK",
		"ip_vs":         "CONFIG_IP_VS",
		"ip_vs_rr":      "CONFIG_IP_VS_RR",
		"ip_vs_wrr":     "CONFIG_IP_VS_WRR",
		"ip_vs_sh":      "CONFIG_IP_VS_SH",
		"act_pedit":     "CONFIG_NET_ACT_PEDIT",
		"cls_u32":       "CONFIG_NET_CLS_U32",
		"ip_set":        "CONFIG_IP_SET",
		"ip_tables":     "CONFIG_IP_NF_IPTABLES",
		"nf_tables":     "CONFIG_NF_TABLES",
		"nft_compat":    "CONFIG_NFT_COMPAT",
		"nft_ct":        "CONFIG_NFT_CT",
		"nft_fib":       "CONFIG_NFT_FIB",
		"nft_masq":      "CONFIG_NFT_MASQ",
		"nft_nat":       "CONFIG_NFT_NAT",
		"nft_numgen":    "CONFIG_NFT_NUMGEN",
		"xt_MASQUERADE": "CONFIG_NETFILTER_XT_TARGET_MASQUERADE",
		"sch_prio":      "CONFIG_NET_SCH_PRIO",
		"xt_addrtype":   "CONFIG_NETFILTER_XT_MATCH_ADDRTYPE",
		"xt_comment":    "CONFIG_NETFILTER_XT_MATCH_COMMENT",
		"xt_conntrack":  "CONFIG_NETFILTER_XT_MATCH_CONNTRACK",
		"xt_mark":       "CONFIG_NETFILTER_XT_MARK",
		"xt_nat":        "CONFIG_NETFILTER_XT_NAT",
		"xt_set":        "CONFIG_NETFILTER_XT_SET",
		"xt_statistic":  "CONFIG_NETFILTER_XT_MATCH_STATISTIC",
	}[module]
}

// kernelConfig reads the requested options; nil if there is no configuration.
func (c kernelCollector) kernelConfig() map[string]string {
	asked := slices.Clone(c.probe.KernelConfig)
	for _, m := range c.probe.Modules {
		if option := moduleOption(m); option != "" {
			asked = append(asked, option)
		}
	}
	return c.readAnyConfig(asked)
}

// readAnyConfig reads options from the first available configuration; nil if there is none.
func (c kernelCollector) readAnyConfig(asked []string) map[string]string {
	release := c.facts.Kernel
	for _, name := range []string{
		"/proc/config.gz", "/boot/config-" + release, "/usr/lib/modules/" + release + "/config", "/lib/modules/" +
			release + "/config",
	} {
		if found := c.readConfig(name, asked); found != nil {
			return found
		}
	}
	return nil
}

func (c kernelCollector) readConfig(name string, asked []string) map[string]string {
	file, err := os.Open(c.path(name))
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }() // only read
	var r io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(file)
		if err != nil {
			c.problem(name, err)
			return nil
		}
		r = z
	}
	found := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxText))
	any := false
	for lines.Scan() {
		option, value, ok := strings.Cut(lines.Text(), "=")
		if !ok || !strings.HasPrefix(option, "CONFIG_") {
			continue
		}
		any = true
		if slices.Contains(asked, option) {
			found[option] = value
		}
	}
	c.problem(name, lines.Err())
	if !any {
		return nil
	}
	for _, option := range asked {
		if found[option] == "" {
			found[option] = "n"
		}
	}
	return found
}

// modules finds out whether modules are loaded, built in or loadable.
func (c kernelCollector) modules() {
	states := map[string]Module{}
	c.facts.Modules = states
	for _, m := range c.probe.Modules {
		states[m] = ModuleMissing
	}
	mark := func(name string, state Module) {
		name = strings.ReplaceAll(name, "-", "_")
		for m, now := range states {
			if strings.ReplaceAll(m, "-", "_") == name && now == ModuleMissing {
				states[m] = state
			}
		}
	}
	c.scan("/proc/modules", func(line string) {
		name, _, _ := strings.Cut(line, " ")
		mark(name, ModuleLoaded)
	})
	dir := "/lib/modules/" + c.facts.Kernel
	c.scan(dir+"/modules.builtin", func(line string) { mark(moduleName(line), ModuleBuiltIn) })
	forbids := c.forbiddenModules()
	c.scan(dir+"/modules.dep", func(line string) {
		file, _, _ := strings.Cut(line, ":")
		name := moduleName(file)
		if forbids[underscored(name)] == "" {
			mark(name, ModuleAvailable)
			return
		}
		mark(name, ModuleForbidden)
	})
	for _, m := range c.probe.Modules {
		if c.facts.KernelConfig[moduleOption(m)] == "y" {
			mark(m, ModuleBuiltIn)
		}
		if where := forbids[underscored(m)]; states[m] == ModuleForbidden {
			put(&c.facts.Forbids, m, where)
		}
	}
}

// underscored returns the kernel's spelling of a module's name.
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

// forbiddenModules returns where modules are forbidden, by name: the lines "install NAME /bin/false" and "/bin/true"
// of modprobe.d(5), as hardening guides have them, and module_blacklist of the kernel's command line. A line
// "blacklist NAME" alone ignores aliases, and modprobe NAME loads the module all the same. A file in an earlier
// directory replaces those of its name in later ones.
func (c kernelCollector) forbiddenModules() map[string]string {
	forbids, seen := map[string]string{}, map[string]bool{}
	for _, dir := range []string{
		"/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d",
		"/usr/lib/modprobe.d", "/lib/modprobe.d",
	} {
		for _, name := range c.list(dir) {
			if seen[name] || path.Ext(name) != ".conf" {
				continue
			}
			seen[name] = true
			file := path.Join(dir, name)
			for line := range strings.Lines(strings.ReplaceAll(c.text(file), "\\\n", " ")) {
				if f := strings.Fields(line); len(f) > 2 && f[0] == "install" && loadsNothing(f[2]) {
					forbids[underscored(f[1])] = file
				}
			}
		}
	}
	for _, option := range strings.Fields(c.text("/proc/cmdline")) {
		if list, ok := strings.CutPrefix(option, "module_blacklist="); ok {
			for name := range strings.SplitSeq(list, ",") {
				forbids[underscored(name)] = "module_blacklist"
			}
		}
	}
	return forbids
}

// loadsNothing reports whether a command in place of loading a module does nothing.
func loadsNothing(command string) bool {
	return slices.Contains([]string{"false", "true", ":"}, path.Base(strings.TrimSuffix(command, ";")))
}

// installedKernels returns the releases in /lib/modules with a list of modules. An upgrade may leave files of an
// earlier kernel there.
func (c kernelCollector) installedKernels() []string {
	const dir = "/lib/modules"
	var list []string
	for _, release := range c.list(dir) {
		if _, err := os.Stat(c.path(path.Join(dir, release, "modules.dep"))); err == nil {
			list = append(list, release)
		}
	}
	return list
}

// moduleName turns kernel/fs/overlayfs/overlay.ko.xz into overlay.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(strings.TrimSpace(file)), ".ko")
	return name
}
