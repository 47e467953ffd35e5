package node

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Limits on the settings of units, by number.
const (
	maxUnitSettings = 100
	maxSettingNames = 50
)

// unitSettings finds the files that change the kubelet or k3s beside their units: environment files, which their
// units read, and drop-ins. The files' values may be secret and are left out.
func (c machineCollector) unitSettings() {
	for _, name := range []string{"kubelet", "k3s", "k3s-agent"} {
		environment := []string{"/etc/default/" + name, "/etc/sysconfig/" + name}
		if name == "kubelet" {
			environment = append(environment, "/var/lib/kubelet/kubeadm-flags.env")
		} else {
			environment = append(environment, "/etc/systemd/system/"+name+".service.env")
		}
		for _, file := range environment {
			c.addUnitSetting(name, file, environmentNames(joinLines(c.text(file))))
		}
		for _, file := range c.dropIns(name + ".service") {
			c.addUnitSetting(name, file, dropInNames(joinLines(c.text(file))))
		}
	}
}

func (c machineCollector) addUnitSetting(name, file string, sets []string) {
	slices.Sort(sets)
	sets = slices.Compact(sets)
	if len(sets) > 0 && len(c.facts.UnitSettings) < maxUnitSettings {
		sets = sets[:min(len(sets), maxSettingNames)]
		c.facts.UnitSettings = append(c.facts.UnitSettings, UnitSetting{
			Unit: name + ".service", File: file,
			Sets: sets,
		})
	}
}

// dropIns returns the drop-ins of a unit that count, in their order: of files with the same name the last directory's
// (systemd.unit(5)).
func (c machineCollector) dropIns(unit string) []string {
	files := map[string]string{}
	for _, dir := range []string{"/lib", "/usr/lib", "/usr/local/lib", "/run", "/etc"} {
		for _, file := range c.conf(dir + "/systemd/system/" + unit + ".d") {
			files[path.Base(file)] = file
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, files[name])
	}
	return list
}

// joinLines joins the lines of a unit or an environment file that end in a backslash.
func joinLines(text string) string { return strings.ReplaceAll(text, "\\\n", " ") }

// environmentNames returns what an environment file sets.
func environmentNames(text string) []string {
	var names []string
	for name, value := range shellValues(text) {
		names = append(names, settingNames(name, value)...)
	}
	return names
}

// dropInNames returns what a drop-in sets. Without a value a setting takes back earlier ones, the unit's own among
// them.
func dropInNames(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		words := unitWords(value)
		switch {
		case !ok || strings.HasPrefix(key, "#") || strings.HasPrefix(key, ";"):
		case key == "Environment" && len(words) > 0:
			for _, word := range words {
				name, value, _ := strings.Cut(word, "=")
				names = append(names, settingNames(name, value)...)
			}
		case key == "EnvironmentFile":
			names = append(names, key+"="+value)
		default:
			names = append(names, key)
			names = append(names, flagNames(value)...)
		}
	}
	return names
}

// settingNames returns the flags in a variable, or else its name. Proxies are UnitProxies.
func settingNames(name, value string) []string {
	name = strings.TrimSpace(name)
	if value == "" || strings.HasPrefix(name, ";") || slices.Contains(proxyNames(), strings.ToUpper(name)) {
		return nil
	}
	if flags := flagNames(value); len(flags) > 0 {
		return flags
	}
	return []string{name}
}

// flagNames returns the names of the flags in a command line.
func flagNames(value string) []string {
	var names []string
	for _, word := range unitWords(value) {
		if name, _, _ := strings.Cut(word, "="); strings.HasPrefix(name, "--") && name != "--" {
			names = append(names, name)
		}
	}
	return names
}
