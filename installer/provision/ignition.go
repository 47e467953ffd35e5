package provision

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ignitionReader reads an Ignition configuration. It holds the parts, which are put in Ignition's order after reading:
// disks, filesystems, users, files, units. coreos/ignition is not used: it accepts repeated keys and any user name, and
// stops at the first wrong type.
type ignitionReader struct {
	*reader
	disks, filesystems, mounts, groups, users, dirs, files, links, units []Step
}

func (r *ignitionReader) program(n *yaml.Node) *Program {
	if n == nil {
		return nil
	}
	version := ""
	if v := valueOf(valueOf(n, "ignition"), "version"); v != nil {
		r.text(&version)(v)
	}
	if strings.HasPrefix(version, "2.") {
		r.upgrade(n)
	}
	r.mapping(n, "Ignition", map[string]func(*yaml.Node){
		"ignition": func(n *yaml.Node) {
			r.mapping(n, "ignition", map[string]func(*yaml.Node){
				"version": ignored, "config": r.empty("config of ignition: other configurations"),
				"security": ignored, "timeouts": ignored, "proxy": ignored, // of downloads, and there are none
			})
		},
		"networkd":        r.empty("networkd"),
		"kernelArguments": r.empty("kernelArguments"),
		"storage":         r.storage,
		"systemd": func(n *yaml.Node) {
			r.mapping(n, "systemd", map[string]func(*yaml.Node){"units": r.steps("units", &r.units, r.unit)})
		},
		"passwd": func(n *yaml.Node) {
			r.mapping(n, "passwd", map[string]func(*yaml.Node){
				"users": r.steps("users", &r.users, r.user), "groups": r.steps("groups", &r.groups, r.group),
			})
		},
	})
	if !regexp.MustCompile(`^(3\.[0-5]|2\.[0-3])\.0$`).MatchString(version) {
		r.fail(n, "ignition.version is %q; 3.0.0 to 3.5.0, and 2.0.0 to 2.3.0, which Cluster API's kubeadm provider writes, are supported", version)
	}
	return &Program{Format: "ignition", Steps: slices.Concat(
		r.disks, r.filesystems, r.mounts, r.groups, r.users, r.dirs, r.files, r.links, r.units,
	)}
}

func (r *ignitionReader) storage(n *yaml.Node) {
	r.mapping(n, "storage", map[string]func(*yaml.Node){
		"disks":       r.steps("disks", &r.disks, r.disk),
		"raid":        r.empty("raid of storage"),
		"luks":        r.empty("luks of storage"),
		"filesystems": r.list("filesystems", r.filesystem),
		"directories": r.steps("directories", &r.dirs, r.directory),
		"files":       r.list("files", r.file),
		"links":       r.steps("links", &r.links, r.link),
	})
}

// decimal reads a mode in JSON's decimal form: 420 is 0644.
func (r *ignitionReader) decimal(into *fs.FileMode) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var v int
		r.number(&v)(n)
		if v > 0o7777 {
			r.fail(n, "invalid mode %d: Ignition writes modes in decimal: 420 is 0644", v)
		}
		*into = fs.FileMode(v) //nolint:gosec // at most 07777, or a problem
	}
}

// nameOrID reads {name: ...} or {id: ...}.
func (r *ignitionReader) nameOrID(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.mapping(n, "an owner", map[string]func(*yaml.Node){"name": r.account(into), "id": r.account(into)})
	}
}

func (r *ignitionReader) directory(n *yaml.Node) Step {
	d := Directory{Mode: 0o755} // the specification's default
	r.mapping(n, "a directory", map[string]func(*yaml.Node){
		"path": r.absolute(&d.Path), "mode": r.decimal(&d.Mode), "overwrite": r.never("overwrite of a directory"),
		"user": r.nameOrID(&d.Owner.User), "group": r.nameOrID(&d.Owner.Group),
	})
	if d.Path == "" {
		r.fail(n, "a directory must have a path")
	}
	return d
}

// empty accepts an unsupported setting only without content, as Go's encoder writes it.
func (r *reader) empty(what string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if !saysNothing(n) {
			r.fail(n, "%s: not supported", what)
		}
	}
}

func saysNothing(n *yaml.Node) bool {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 1; i < len(n.Content); i += 2 {
			if !saysNothing(n.Content[i]) {
				return false
			}
		}
		return true
	case yaml.SequenceNode:
		return len(n.Content) == 0
	}
	return n.Kind == yaml.ScalarNode && (n.Tag == "!!null" || n.Value == "")
}

// never accepts an unsupported setting only as false.
func (r *reader) never(what string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var yes bool
		if r.truth(&yes)(n); yes {
			r.fail(n, "%s is not supported", what)
		}
	}
}

func (r *ignitionReader) file(n *yaml.Node) {
	f := File{Mode: 0o644, Keep: true} // the specification's defaults
	var overwrite bool
	var contents *yaml.Node
	var added [][]byte
	r.mapping(n, "a file", map[string]func(*yaml.Node){
		"path": r.absolute(&f.Path), "mode": r.decimal(&f.Mode), "overwrite": r.truth(&overwrite),
		"user": r.nameOrID(&f.Owner.User), "group": r.nameOrID(&f.Owner.Group),
		"contents": func(n *yaml.Node) { contents = n },
		"append":   r.list("append", func(n *yaml.Node) { added = append(added, r.resource(n)) }),
	})
	if f.Path == "" {
		r.fail(n, "a file must have a path")
	}
	f.Keep = !overwrite
	if contents != nil {
		f.Data = r.resource(contents)
	}
	if contents != nil || len(added) == 0 {
		r.files = append(r.files, f)
	}
	for _, data := range added {
		f.Data, f.Append, f.Keep = data, true, false
		r.files = append(r.files, f)
	}
}

// resource reads the content of a file: a data URL, optionally compressed, checked against a digest if given.
func (r *ignitionReader) resource(n *yaml.Node) []byte {
	var source, compression, hash string
	r.mapping(n, "contents", map[string]func(*yaml.Node){
		"source": r.text(&source), "compression": r.oneOf(&compression, "", "gzip"),
		"httpHeaders": r.list("httpHeaders", ignored),
		"verification": func(n *yaml.Node) {
			r.mapping(n, "verification", map[string]func(*yaml.Node){"hash": r.text(&hash)})
		},
	})
	if source == "" {
		return nil
	}
	data, err := dataURL(source)
	if err == nil {
		err = verified(data, hash)
	}
	if err == nil {
		data, err = unpacked(data, compression)
	}
	if err != nil {
		r.fail(n, "%v", err)
	}
	return data
}

// dataURL returns the content of a data URL (RFC 2397).
func dataURL(source string) ([]byte, error) {
	rest, ok := strings.CutPrefix(source, "data:")
	if !ok {
		scheme, _, _ := strings.Cut(source, ":")
		return nil, fmt.Errorf("contents from %s: unavailable without internet; put them into a data: URL", scheme)
	}
	kind, text, ok := strings.Cut(rest, ",")
	if !ok {
		return nil, fmt.Errorf("a data: URL needs a comma before its content")
	}
	text, err := url.PathUnescape(text)
	if err != nil {
		return nil, fmt.Errorf("a data: URL: %w", err)
	}
	if strings.HasSuffix(kind, ";base64") {
		return unpacked([]byte(text), "b64")
	}
	return []byte(text), nil
}

func verified(data []byte, hash string) error {
	kind, want, _ := strings.Cut(hash, "-")
	var got string
	switch kind {
	case "":
		return nil
	case "sha256":
		sum := sha256.Sum256(data)
		got = hex.EncodeToString(sum[:])
	case "sha512":
		sum := sha512.Sum512(data)
		got = hex.EncodeToString(sum[:])
	default:
		return fmt.Errorf("a hash must begin with sha256- or sha512-, not %q", kind)
	}
	if got != strings.ToLower(want) {
		return fmt.Errorf("the contents have the %s %s, want %s", kind, got, want)
	}
	return nil
}

func (r *ignitionReader) link(n *yaml.Node) Step {
	var l Link
	var owner Owner
	r.mapping(n, "a link", map[string]func(*yaml.Node){
		"path": r.absolute(&l.Path), "target": r.text(&l.Target), "hard": r.truth(&l.Hard),
		"overwrite": r.truth(&l.Replace),
		"user":      r.nameOrID(&owner.User), "group": r.nameOrID(&owner.Group),
	})
	switch {
	case l.Path == "" || l.Target == "":
		r.fail(n, "a link must have a path and a target")
	case owner != Owner{}:
		r.fail(n, "owners of links are not supported")
	}
	return l
}

func (r *ignitionReader) disk(n *yaml.Node) Step {
	d := Disk{Table: "gpt"}
	r.mapping(n, "a disk", map[string]func(*yaml.Node){
		"device": r.device(&d.Device), "wipeTable": r.truth(&d.Overwrite),
		"partitions": r.list("partitions", func(n *yaml.Node) {
			var p Partition
			var number int
			r.mapping(n, "a partition", map[string]func(*yaml.Node){
				"label": r.text(&p.Label), "number": r.number(&number), "sizeMiB": r.number(&p.SizeMiB),
				"startMiB": r.number(&p.StartMiB),
				"typeGuid": r.text(&p.Type), "wipePartitionEntry": r.never("wipePartitionEntry"),
				"resize": r.never("resize"),
				"shouldExist": func(n *yaml.Node) {
					should := true
					if r.truth(&should)(n); !should {
						r.fail(n, "removing a partition (shouldExist: false) is not supported; leave the partition out; wipeTable: true removes every partition of the disk")
					}
				},
			})
			if number != 0 && number != len(d.Parts)+1 {
				r.fail(n, "partitions must be numbered in order; %d is not the next number", number)
			}
			d.Parts = append(d.Parts, p)
		}),
	})
	if d.Device == "" {
		r.fail(n, "a disk must have a device")
	}
	return d
}

func (r *ignitionReader) filesystem(n *yaml.Node) {
	var f Filesystem
	var at string
	var options []string
	r.mapping(n, "a filesystem", map[string]func(*yaml.Node){
		"device": r.device(&f.Device), "format": r.oneOf(&f.Type, "ext4", "xfs", "btrfs", "vfat"),
		"label": r.text(&f.Label),
		"uuid":  r.text(&f.UUID), "wipeFilesystem": r.truth(&f.Overwrite), "options": r.texts(&f.Options),
		"path": r.absolute(&at), "mountOptions": r.texts(&options),
	})
	if f.Device == "" || f.Type == "" {
		r.fail(n, "a filesystem must have a device and a format")
	}
	r.filesystems = append(r.filesystems, f)
	if at != "" {
		// Ignition mounts it while it writes files, and leaves mounting at boot to a unit. Here the fstab line does
		// both.
		r.mounts = append(r.mounts, Mount{f.Device, at, f.Type, strings.Join(append(options, "defaults", "nofail"),
			","), "0", "2"})
	}
}

func (r *ignitionReader) group(n *yaml.Node) Step {
	var g Group
	should := true
	r.mapping(n, "a group", map[string]func(*yaml.Node){
		"name": r.account(&g.Name), "gid": r.account(&g.GID), "system": r.truth(&g.System),
		"shouldExist":  r.truth(&should),
		"passwordHash": func(n *yaml.Node) { r.fail(n, "passwords of groups are not supported") },
	})
	g.Remove = !should
	if g.Name == "" {
		r.fail(n, "a group must have a name")
	}
	return g
}

func (r *ignitionReader) user(n *yaml.Node) Step {
	var u User
	should := true
	r.mapping(n, "a user", map[string]func(*yaml.Node){
		"name": r.account(&u.Name), "gecos": r.text(&u.Comment), "homeDir": r.absolute(&u.Home),
		"shell": r.absolute(&u.Shell),
		"uid":   r.text(&u.UID), "primaryGroup": r.account(&u.PrimaryGroup), "groups": r.texts(&u.Groups),
		"system":       r.truth(&u.System),
		"noCreateHome": r.truth(&u.NoHome), "noUserGroup": r.truth(&u.NoGroup), "noLogInit": ignored,
		"shouldExist":  r.truth(&should),
		"passwordHash": r.text(&u.PasswordHash), "sshAuthorizedKeys": r.texts(&u.Keys),
	})
	u.Remove = !should
	if u.Name == "" {
		r.fail(n, "a user must have a name")
	}
	r.checkUser(n, u)
	return u
}

func (r *ignitionReader) unit(n *yaml.Node) Step {
	var u Unit
	r.mapping(n, "a unit", map[string]func(*yaml.Node){
		"name":     r.unitName(&u.Name),
		"mask":     r.truth(&u.Mask),
		"contents": r.bytes(&u.Contents),
		"enabled": func(n *yaml.Node) {
			r.truth(&u.Enable)(n)
			u.Disable = !u.Enable
		},
		"dropins": r.list("dropins", func(n *yaml.Node) {
			var d Dropin
			r.mapping(n, "a drop-in",
				map[string]func(*yaml.Node){"name": r.unitName(&d.Name), "contents": r.bytes(&d.Contents)})
			u.Dropins = append(u.Dropins, d)
		}),
	})
	if u.Name == "" {
		r.fail(n, "a unit must have a name")
	}
	return u
}

func (r *ignitionReader) bytes(into *[]byte) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var s string
		r.text(&s)(n)
		*into = []byte(s)
	}
}

// unitName reads the name of a unit, or of a drop-in file, see systemd.unit(5).
func (r *ignitionReader) unitName(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.text(into)(n)
		if !regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.[a-z]+$`).MatchString(*into) || strings.HasPrefix(*into, ".") {
			r.fail(n, "invalid unit name %q", *into)
		}
	}
}
