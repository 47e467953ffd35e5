package service

import (
	"bytes"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
)

// A Spec is the service of one registry on a host: the user that it runs as, its sandbox and its limits. Every registry that kkbundle
// runs on a host is made from one, whichever program it runs and whoever writes the files.
type Spec struct {
	Mark        string   // first line of the files that are ours
	Description string   // of the unit
	User        string   // runs the registry and owns Dir
	UserFile    string   // path of UserText on the host
	Dir         string   // content; the only place the registry may write to
	Closed      string   // a directory above Dir that only root may enter; "" if there is none
	Readable    []string // files of root that User has to read: keys, logins
	Command     []string
	Program     bool   // Command is the registry program and not kkbundle, which reloads its files at SIGHUP
	Listen      string // HOST:PORT; a port below 1024 takes a capability
}

// UserText returns the systemd-sysusers file of the user.
func (s Spec) UserText() []byte {
	return fmt.Appendf(nil, "%s\nu %s - \"kkbundle registry\" - -\n", s.Mark, s.User)
}

// Prepare returns the commands that give the user its files. They run after the files are written and before the unit starts, and can be
// repeated. Content of another owner, such as an older version's root, becomes the user's.
func (s Spec) Prepare() [][]string {
	return [][]string{
		{"systemd-sysusers", s.UserFile},
		append([]string{"chown", "root:" + s.User}, s.Readable...),
		{"install", "-d", "-m", "0750", s.Dir},
		{"chown", "-RH", s.User + ":" + s.User, s.Dir}, // Dir may be a link to another disk
	}
}

// UnitText returns the systemd unit. Its sandbox is for systemd 239 and later; older ones warn about settings that they do not know.
func (s Spec) UnitText() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `%s
[Unit]
Description=%s
After=network-online.target
Wants=network-online.target

[Service]
User=%[3]s
Group=%[3]s
ExecStart=%s
`, s.Mark, s.Description, s.User, strings.Join(s.Command, " "))
	if s.Program { // it looks for a collector of its traces otherwise
		b.WriteString("Environment=OTEL_TRACES_EXPORTER=none\n")
	} else {
		b.WriteString("ExecReload=/bin/kill -HUP $MAINPID\n")
	}
	fmt.Fprintf(&b, `Restart=always
RestartSec=2
TimeoutStopSec=30
LimitNOFILE=65536
AmbientCapabilities=%[1]s
CapabilityBoundingSet=%[1]s
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
UMask=0077
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
`, s.capability())
	if s.Closed != "" { // the service sees an empty directory there with nothing but its own in it
		fmt.Fprintf(&b, "TemporaryFileSystem=%s:ro\nBindPaths=%s\n", s.Closed, s.Dir)
	}
	fmt.Fprintf(&b, "ReadWritePaths=%s\n\n[Install]\nWantedBy=multi-user.target\n", s.Dir)
	return b.Bytes()
}

// capability returns the capability that listening takes.
func (s Spec) capability() string {
	const privilegedPorts = 1024
	_, text, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return ""
	}
	if port, err := strconv.Atoi(text); err != nil || port >= privilegedPorts {
		return ""
	}
	return "CAP_NET_BIND_SERVICE"
}

// mark is how files of ours begin. A cluster's registry has another one.
const mark = hostfile.Author + " registry install."

// spec is the registry of this host.
func (w *work) spec() Spec {
	s := Spec{
		Mark: mark, Description: "Container registry of this site", User: User, UserFile: usersPath,
		Dir: w.Dir, Readable: []string{keyPath, htpasswdPath}, Command: w.command(), Program: w.Own, Listen: w.Listen,
	}
	if w.Own {
		s.Readable = append(s.Readable, configPath)
	}
	return s
}

func (w *work) command() []string {
	program := path.Join(programDir, w.Program.Name)
	if w.Own {
		return []string{program, "serve", configPath}
	}
	args := []string{
		program, "registry", "serve", "--dir", w.Dir, "--listen", w.Listen,
		"--tls-cert", certPath, "--tls-key", keyPath, "--htpasswd", htpasswdPath,
	}
	if w.Delete {
		args = append(args, "--delete")
	}
	if w.Metrics != "" {
		args = append(args, "--metrics", w.Metrics)
	}
	return args
}
