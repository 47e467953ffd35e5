package provision

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// cloudReader reads a #cloud-config. It holds the parts, which are put in cloud-init's order after reading.
// https://github.com/canonical/cloud-init/blob/main/config/cloud.cfg.tmpl
type cloudReader struct {
	*reader
	boot, files, disks, filesystems, mounts, name, full, groups, users, members, time, zone, run, late []Step
	keepName                                                                                           bool
}

func (r *cloudReader) program(n *yaml.Node) *Program {
	if n == nil {
		return nil
	}
	r.mapping(n, "cloud-config", map[string]func(*yaml.Node){
		"bootcmd":           r.steps("bootcmd", &r.boot, func(n *yaml.Node) Step { return r.command(n, true) }),
		"write_files":       r.list("write_files", r.file),
		"disk_setup":        r.diskSetup,
		"fs_setup":          r.steps("fs_setup", &r.filesystems, r.filesystem),
		"mounts":            r.steps("mounts", &r.mounts, r.mount),
		"hostname":          step(&r.name, r.hostname),
		"fqdn":              step(&r.full, r.fqdn),
		"preserve_hostname": r.truth(&r.keepName),
		"groups":            r.list("groups", r.group),
		"users":             r.steps("users", &r.users, r.user),
		"ntp":               step(&r.time, r.ntp),
		"timezone":          step(&r.zone, r.timezone),
		"runcmd":            r.steps("runcmd", &r.run, func(n *yaml.Node) Step { return r.command(n, false) }),
	})
	if r.name == nil {
		r.name = r.full
	}
	if r.keepName {
		r.name = nil
	}
	return &Program{Format: "cloud-config", Steps: slices.Concat(
		r.boot, r.files, r.disks, r.filesystems, r.mounts, r.name, r.groups, r.users, r.members, r.time, r.zone, r.late,
		r.run,
	)}
}

// command reads a text for a shell, or a list of arguments.
func (r *cloudReader) command(n *yaml.Node, always bool) Step {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" && strings.TrimSpace(n.Value) != "" {
		return Command{Args: []string{"/bin/sh", "-c", n.Value}, Always: always}
	}
	if n.Kind == yaml.MappingNode {
		r.fail(n, "a command must be a text or a list, this is a mapping: quote a text that contains a colon and a space")
		return nil
	}
	var args []string
	r.textList("a command", &args)(n)
	if len(args) == 0 || args[0] == "" {
		r.fail(n, "a command must have a name")
		return nil
	}
	return Command{Args: args, Always: always}
}

func (r *cloudReader) file(n *yaml.Node) {
	const byDefault = 0o644 // https://docs.cloud-init.io/en/latest/reference/modules.html#write-files
	f := File{Mode: byDefault}
	var late bool
	var encoding string
	var content *yaml.Node
	r.mapping(n, "write_files", map[string]func(*yaml.Node){
		"path":        r.absolute(&f.Path),
		"owner":       r.owner(&f.Owner),
		"permissions": r.octal(&f.Mode),
		"encoding":    r.text(&encoding),
		"append":      r.truth(&f.Append),
		"defer":       r.truth(&late),
		"content":     func(n *yaml.Node) { content = n },
	})
	if f.Path == "" {
		r.fail(n, "an entry of write_files must have a path")
		return
	}
	if content != nil && content.Tag != "!!null" {
		var text string
		r.text(&text)(content)
		var err error
		if f.Data, err = unpacked([]byte(text), encodings(encoding, content.Tag == "!!binary")...); err != nil {
			r.fail(content, "content of %s: %v", f.Path, err)
		}
	}
	if late {
		r.late = append(r.late, f)
		return
	}
	r.files = append(r.files, f)
}

// encodings returns the encodings in the order of decoding: gz+b64 is base64 of gzip data. YAML's binary values are
// base64, too.
func encodings(name string, binary bool) []string {
	list := strings.Split(strings.ToLower(strings.TrimSpace(name)), "+")
	slices.Reverse(list)
	if binary {
		list = append([]string{"b64"}, list...)
	}
	return list
}

func (r *cloudReader) diskSetup(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "disk_setup must be a mapping")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		d := Disk{Table: "mbr"}
		r.device(&d.Device)(n.Content[i])
		r.mapping(n.Content[i+1], "disk_setup", map[string]func(*yaml.Node){
			"table_type": r.oneOf(&d.Table, "gpt", "mbr"),
			"layout":     func(n *yaml.Node) { r.layout(n, &d) },
			"overwrite":  r.truth(&d.Overwrite),
		})
		r.disks = append(r.disks, d)
	}
}

// layout reads true for one partition, false for none, or a list of sizes in percent, each with an optional type.
func (r *cloudReader) layout(n *yaml.Node, d *Disk) {
	if n.Kind == yaml.ScalarNode {
		var whole bool
		r.truth(&whole)(n)
		if whole {
			d.Parts = []Partition{{}}
		}
		return
	}
	r.list("layout", func(n *yaml.Node) {
		var p Partition
		size := n
		if n.Kind == yaml.SequenceNode && len(n.Content) == 2 {
			size = n.Content[0]
			r.text(&p.Type)(n.Content[1])
		}
		r.number(&p.Percent)(size)
		if p.Percent < 1 || p.Percent > 100 {
			r.fail(size, "want a size in percent")
		}
		d.Parts = append(d.Parts, p)
	})(n)
}

func (r *cloudReader) filesystem(n *yaml.Node) Step {
	var f Filesystem
	var partition string
	r.mapping(n, "fs_setup", map[string]func(*yaml.Node){
		"label":      r.text(&f.Label),
		"filesystem": r.oneOf(&f.Type, "ext4", "ext3", "xfs", "btrfs", "vfat"),
		"device":     r.device(&f.Device),
		"partition":  r.text(&partition),
		"overwrite":  r.truth(&f.Overwrite),
		"extra_opts": r.texts(&f.Options),
	})
	switch {
	case f.Device == "" || f.Type == "":
		r.fail(n, "an entry of fs_setup must have a device and a filesystem")
	case partition == "" || partition == "none":
	case partition == "auto" || partition == "any":
		f.Device += partitionName(f.Device, "1")
	case strings.Trim(partition, "0123456789") == "":
		f.Device += partitionName(f.Device, partition)
	default:
		r.fail(n, "partition must be auto, any, none or a number, not %q", partition)
	}
	return f
}

// partitionName returns the kernel's name of a partition.
func partitionName(device, number string) string {
	if last := device[len(device)-1]; last >= '0' && last <= '9' {
		return "p" + number
	}
	return number
}

// mount reads the fields of a line of /etc/fstab, with cloud-init's defaults for missing ones.
func (r *cloudReader) mount(n *yaml.Node) Step {
	var fields []string
	r.list("a mount", func(n *yaml.Node) {
		var one string
		if n.Tag != "!!null" {
			r.text(&one)(n)
		}
		if strings.ContainsAny(one, " \t\n") {
			r.fail(n, "a field of /etc/fstab cannot contain spaces; write \\040")
		}
		fields = append(fields, one)
	})(n)
	byDefault := []string{"", "", "auto", "defaults,nofail", "0", "2"}
	for i, d := range byDefault {
		if i == len(fields) {
			fields = append(fields, d)
		}
		if fields[i] == "" {
			fields[i] = d
		}
	}
	m := Mount{fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]}
	source := strings.HasPrefix(m.Source, "/dev/") || strings.Contains(m.Source, "=") ||
		strings.Contains(m.Source, ":/") || m.Type == "tmpfs" ||
		path.IsAbs(m.Source) && m.HasOption("bind", "rbind", "loop")
	switch {
	case len(fields) > len(byDefault):
		r.fail(n, "a line of /etc/fstab has six fields")
	case m.Type == "swap":
		r.fail(n, "swap is not enabled: the kubelet does not run with it")
	case !source:
		r.fail(n, "invalid device %q: write /dev/..., LABEL=... or UUID=..., or a path with the option bind, rbind or loop", m.Source)
	case !strings.HasPrefix(m.Path, "/"):
		r.fail(n, "invalid mount point %q", m.Path)
	}
	return m
}

func (r *cloudReader) group(n *yaml.Node) {
	var g Group
	if n.Kind == yaml.ScalarNode {
		r.account(&g.Name)(n)
		r.groups = append(r.groups, g)
		return
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		r.fail(n, "a group must be its name, or its name with a list of members")
		return
	}
	var members []string
	r.account(&g.Name)(n.Content[0])
	r.texts(&members)(n.Content[1])
	r.accounts(n, members...)
	r.groups = append(r.groups, g)
	for _, user := range members {
		r.members = append(r.members, Member{Group: g.Name, User: user})
	}
}

func (r *cloudReader) user(n *yaml.Node) Step {
	if n.Kind == yaml.ScalarNode && n.Value == "default" {
		return nil // the distribution's image has this user
	}
	underscored(n)
	u := User{Lock: true} // https://docs.cloud-init.io/en/latest/reference/modules.html#users-and-groups
	r.mapping(n, "a user", map[string]func(*yaml.Node){
		"name":                r.account(&u.Name),
		"gecos":               r.text(&u.Comment),
		"homedir":             r.absolute(&u.Home),
		"shell":               r.absolute(&u.Shell),
		"uid":                 r.text(&u.UID),
		"primary_group":       r.account(&u.PrimaryGroup),
		"groups":              r.texts(&u.Groups),
		"system":              r.truth(&u.System),
		"no_create_home":      r.truth(&u.NoHome),
		"no_user_group":       r.truth(&u.NoGroup),
		"lock_passwd":         r.truth(&u.Lock),
		"passwd":              r.text(&u.PasswordHash),
		"hashed_passwd":       r.text(&u.PasswordHash),
		"ssh_authorized_keys": r.texts(&u.Keys),
		"sudo":                r.sudo(&u.Sudo),
		"no_log_init":         ignored,
		"inactive":            r.never("inactive of a user"),
	})
	if u.Name == "" {
		r.fail(n, "a user must have a name")
	}
	r.checkUser(n, u)
	return u
}

// underscored writes the keys of a user with underscores, as cloud-init does: older documents have hyphens.
func underscored(n *yaml.Node) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		n.Content[i].Value = strings.ReplaceAll(n.Content[i].Value, "-", "_")
	}
}

// sudo reads a rule, a list of rules, or false for none.
func (r *cloudReader) sudo(into *[]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			if n.Value != "false" && n.Tag != "!!null" {
				*into = []string{n.Value}
			}
			return
		}
		r.texts(into)(n)
	}
}

func (r *cloudReader) ntp(n *yaml.Node) Step {
	on := true
	var t Time
	r.mapping(n, "ntp", map[string]func(*yaml.Node){
		"enabled": r.truth(&on), "servers": r.texts(&t.Servers), "pools": r.texts(&t.Pools),
		"ntp_client": r.oneOf(new(string), "auto", "chrony", "systemd-timesyncd"),
	})
	t.Off = !on
	for _, s := range slices.Concat(t.Servers, t.Pools) {
		if !hostName(s) {
			r.fail(n, "invalid server name or address %q", s)
		}
	}
	if on && len(t.Servers)+len(t.Pools) == 0 {
		r.fail(n, "name servers or pools: a distribution's defaults need internet access")
	}
	return t
}

func (r *cloudReader) hostname(n *yaml.Node) Step {
	var h Hostname
	r.text(&h.Name)(n)
	if !hostName(h.Name) || strings.Contains(h.Name, ":") {
		r.fail(n, "invalid host name %q", h.Name)
	}
	return h
}

// fqdn reads a full name, whose first part is the host's name if there is no other.
func (r *cloudReader) fqdn(n *yaml.Node) Step {
	s := r.hostname(n)
	if h, ok := s.(Hostname); ok {
		h.Name, _, _ = strings.Cut(h.Name, ".")
		return h
	}
	return s
}

func (r *cloudReader) timezone(n *yaml.Node) Step {
	var z Timezone
	r.text(&z.Name)(n)
	if !regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`).MatchString(z.Name) {
		r.fail(n, "invalid time zone %q", z.Name)
	}
	return z
}
