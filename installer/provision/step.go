package provision

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A Program is a parsed file: the steps for a host, in this order.
type Program struct {
	// Format is "cloud-config" or "ignition".
	Format string
	Steps  []Step
}

// A Step is one of File, Directory, Link, Command, Hostname, Group, User, Member, Time, Timezone, Disk, Filesystem,
// Mount and Unit.
type Step interface {
	// String returns a short description. It contains no content, which may be secret.
	String() string
}

// An Owner is a user and a group, by name or number; empty is root.
type Owner struct{ User, Group string }

// Chown returns the owner as chown's argument; "" for root.
func (o Owner) Chown() string {
	if o.Group == "" {
		return o.User
	}
	return o.User + ":" + o.Group
}

// A File is a file to write, or to append to.
type File struct {
	Path   string
	Mode   fs.FileMode
	Owner  Owner
	Append bool
	// Keep refuses to replace an existing file with other content.
	Keep bool
	Data []byte
}

// A Directory is a directory to create, with its parents.
type Directory struct {
	Path  string
	Mode  fs.FileMode
	Owner Owner
}

// A Link is a link to create at Path.
type Link struct {
	Path, Target string
	Hard         bool
	// Replace allows removing another file at Path.
	Replace bool
}

// A Command runs once on a host. With Always it runs in every run, like cloud-init's bootcmd at every boot.
type Command struct {
	Args   []string
	Always bool
}

// A Hostname is the host's name.
type Hostname struct{ Name string }

// A Group is a group of users.
type Group struct {
	Name   string
	GID    string // "": chosen by the system
	System bool
	Remove bool
}

// A Member is a user to add to a group.
type Member struct{ Group, User string }

// A User is a user to create if missing, with keys and rights.
type User struct {
	Name, Comment, Home, Shell, UID string
	// PrimaryGroup must exist. If empty, a group with the user's name is created, unless NoGroup is set.
	PrimaryGroup    string
	Groups          []string
	System, NoHome  bool
	NoGroup, Remove bool
	// PasswordHash is a hash for crypt(5); empty leaves the password unchanged. Lock disables the password.
	PasswordHash string
	Lock         bool
	Keys         []string // lines of authorized_keys
	Sudo         []string // rules, without the user's name
}

// Time holds the host's time sources.
type Time struct {
	Off            bool
	Servers, Pools []string
}

// A Timezone is a name of the tz database, such as Europe/Berlin.
type Timezone struct{ Name string }

// A Disk is a disk to partition.
type Disk struct {
	Device string
	Table  string // gpt or mbr
	// Parts are the partitions in order; empty creates none.
	Parts []Partition
	// Overwrite allows losing the content of the disk. Without it, a disk that is not empty stays unchanged.
	Overwrite bool
}

// A Partition is a part of a Disk.
type Partition struct {
	// Percent of the disk, or SizeMiB; both 0 means the rest of the disk.
	Percent, SizeMiB int
	// Start in MiB; 0 means after the previous one.
	StartMiB int
	Label    string
	Type     string // GUID for gpt, hexadecimal code for mbr; "" for a Linux filesystem
}

// A Filesystem is a filesystem to create on a device.
type Filesystem struct {
	Device, Type, Label, UUID string
	Options                   []string
	// Overwrite allows losing another filesystem on the device. Without it, the device must be empty or have this
	// filesystem.
	Overwrite bool
}

// A Mount is a line of /etc/fstab.
type Mount struct {
	Source, Path, Type, Options, Dump, Pass string
}

// HasOption reports whether the mount has any of these options.
func (m Mount) HasOption(names ...string) bool {
	return slices.ContainsFunc(strings.Split(m.Options, ","), func(o string) bool { return slices.Contains(names, o) })
}

// A Unit is a systemd unit.
type Unit struct {
	Name     string
	Contents []byte // nil leaves the unit's file unchanged
	Dropins  []Dropin
	// Enable and Disable take effect if set.
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

// String returns only the command's name: arguments can be secret.
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
