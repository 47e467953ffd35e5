package provision

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A Program is a file that was read: what is done on a host, in this order.
type Program struct {
	// Format is "cloud-config" or "ignition".
	Format string
	Steps  []Step
}

// A Step is one of File, Directory, Link, Command, Hostname, Group, User, Member, Time, Timezone, Disk, Filesystem, Mount and Unit.
type Step interface {
	// String says in a few words what is done to what; it has no content, which may be secret.
	String() string
}

// An Owner is a user and a group, by name or number; empty is root.
type Owner struct{ User, Group string }

// Chown is the owner as chown takes it; "" for root's own.
func (o Owner) Chown() string {
	if o.Group == "" {
		return o.User
	}
	return o.User + ":" + o.Group
}

// A File is written as a whole, or added to.
type File struct {
	Path   string
	Mode   fs.FileMode
	Owner  Owner
	Append bool
	// Keep refuses to replace a file that is there with another content.
	Keep bool
	Data []byte
}

// A Directory is made with those above it.
type Directory struct {
	Path  string
	Mode  fs.FileMode
	Owner Owner
}

// A Link is made at Path.
type Link struct {
	Path, Target string
	Hard         bool
	// Replace allows another file in its place to be removed.
	Replace bool
}

// A Command runs once on a host; one with Always runs on every run, as cloud-init's bootcmd does at every boot.
type Command struct {
	Args   []string
	Always bool
}

// A Hostname is the host's name.
type Hostname struct{ Name string }

// A Group is a group of users.
type Group struct {
	Name   string
	GID    string // "" lets the system choose
	System bool
	Remove bool
}

// A Member is a user who is added to a group.
type Member struct{ Group, User string }

// A User is made if there is none of that name, and given keys and rights.
type User struct {
	Name, Comment, Home, Shell, UID string
	// PrimaryGroup is one that is there; empty makes one of the user's name, unless NoGroup says that none is made.
	PrimaryGroup    string
	Groups          []string
	System, NoHome  bool
	NoGroup, Remove bool
	// PasswordHash is as crypt(5) has it; empty leaves the password alone. Lock makes it useless.
	PasswordHash string
	Lock         bool
	Keys         []string // lines of authorized_keys
	Sudo         []string // rules, without the user's name
}

// Time says where the host takes the time from.
type Time struct {
	Off            bool
	Servers, Pools []string
}

// A Timezone is a name of the tz database, such as Europe/Berlin.
type Timezone struct{ Name string }

// A Disk is given a partition table.
type Disk struct {
	Device string
	Table  string // gpt or mbr
	// Parts are the partitions in their order; none makes none.
	Parts []Partition
	// Overwrite allows what is on the disk to be lost; without it, a disk that is not empty is left as it is.
	Overwrite bool
}

// A Partition is a part of a Disk.
type Partition struct {
	// Percent of the disk, or SizeMiB; both 0 is the rest of the disk.
	Percent, SizeMiB int
	// Start in MiB; 0 is behind the one before.
	StartMiB int
	Label    string
	Type     string // GUID for gpt, hexadecimal code for mbr; "" is Linux' own
}

// A Filesystem is made on a device.
type Filesystem struct {
	Device, Type, Label, UUID string
	Options                   []string
	// Overwrite allows another filesystem on the device to be lost; without it the device must be empty, or have this one.
	Overwrite bool
}

// A Mount is a line of /etc/fstab.
type Mount struct {
	Source, Path, Type, Options, Dump, Pass string
}

// HasOption says whether any of these is among the mount's options.
func (m Mount) HasOption(names ...string) bool {
	return slices.ContainsFunc(strings.Split(m.Options, ","), func(o string) bool { return slices.Contains(names, o) })
}

// A Unit is one of systemd's.
type Unit struct {
	Name     string
	Contents []byte // nil leaves the unit's file alone
	Dropins  []Dropin
	// Enable and Disable are done if set.
	Enable, Disable bool
	Mask            bool
}

// A Dropin is a file in a unit's NAME.d.
type Dropin struct {
	Name     string
	Contents []byte
}

func (f File) String() string {
	if f.Append {
		return "add to " + f.Path
	}
	return "write " + f.Path
}
func (d Directory) String() string { return "make " + d.Path }
func (l Link) String() string      { return "link " + l.Path }

// String has the command's name only: arguments can be secret.
func (c Command) String() string {
	name := c.Args[0]
	if len(c.Args) > 2 && c.Args[1] == "-c" {
		name, _, _ = strings.Cut(strings.TrimSpace(c.Args[2]), " ")
	}
	name, _, _ = strings.Cut(name, "\n")
	return "run " + name
}
func (h Hostname) String() string { return "be " + h.Name }
func (g Group) String() string    { return verb(g.Remove) + " group " + g.Name }
func (u User) String() string     { return verb(u.Remove) + " user " + u.Name }
func (m Member) String() string   { return "add " + m.User + " to " + m.Group }
func (t Time) String() string {
	if t.Off {
		return "leave the clock alone"
	}
	return "take the time from " + strings.Join(append(append([]string{}, t.Servers...), t.Pools...), ", ")
}
func (z Timezone) String() string   { return "live in " + z.Name }
func (d Disk) String() string       { return "partition " + d.Device }
func (f Filesystem) String() string { return fmt.Sprintf("make %s on %s", f.Type, f.Device) }
func (m Mount) String() string      { return "mount " + m.Path }
func (u Unit) String() string       { return "set up " + u.Name }

func verb(remove bool) string {
	if remove {
		return "remove"
	}
	return "make"
}
