package service

import (
	"bytes"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// A Spec is a registry's service on a host: its user, sandbox and limits. All registries of kkbundle share it.
type Spec struct {
	Mark        string // first line of our files
	Description string
	User        string // runs the registry and owns Dir
	UserFile    string // path of UserText on the host
	Dir         string // content; the only writable directory
	ReadOnly    bool   // Dir is not writable, either
	// root's files that User must read: keys, logins; of /etc it sees only their directories, and public files
	Readable []string
	Command  []string
	Program  bool   // Command is the registry program, which cannot reload its files at SIGHUP
	Listen   string // HOST:PORT; a port below 1024 requires a capability
}

// UserText returns the systemd-sysusers file of the user.
func (s Spec) UserText() []byte {
	return fmt.Appendf(nil, "%s\nu %s - \"kkbundle registry\" - -\n", s.Mark, s.User)
}

// Prepare returns the commands that give the user its files, including content of another owner, such as an older
// version's root. They run between writing the files and starting the unit, and can be repeated.
func (s Spec) Prepare() [][]string {
	return [][]string{
		{"systemd-sysusers", s.UserFile},
		append([]string{"chown", "root:" + s.User}, s.Readable...),
		{"install", "-d", "-m", "0750", s.Dir},
		// Links inside are of the user's making: -h changes them, and not what they lead to. Dir may be a link to
		// another disk, hence the slash.
		{"chown", "-Rh", s.User + ":" + s.User, s.Dir + "/"},
	}
}

// UnitText returns the systemd unit. Its sandbox is for systemd 239 and later; older versions warn about unknown
// settings. Before version 250, systemd makes the directories above bound paths with the umask of the service, so the
// umask lets others pass through directories (https://github.com/systemd/systemd/issues/19899).
//
// The service reaches no socket of the host: /run has those of containerd, Docker and systemd, and a program that
// listens on the network needs no Unix socket. Its log is a descriptor that systemd opens.
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
	if s.Program { // otherwise it looks for a trace collector
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
RestrictAddressFamilies=AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
UMask=0066
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
`, s.capability())
	bind, access := "BindPaths", "ReadWritePaths"
	if s.ReadOnly {
		bind, access = "BindReadOnlyPaths", "ReadOnlyPaths"
	}
	// The service sees its own files, and no others where hosts keep keys and data of services, also of those that
	// come later.
	fmt.Fprintf(&b, "TemporaryFileSystem=/etc:ro\nTemporaryFileSystem=/run:ro\nTemporaryFileSystem=/var/lib:ro\n%s=%s\n", bind, s.Dir)
	var dirs []string
	for _, file := range s.Readable {
		dirs = append(dirs, path.Dir(file))
	}
	slices.Sort(dirs)
	for _, shown := range append(slices.Compact(dirs), publicFiles()...) {
		fmt.Fprintf(&b, "BindReadOnlyPaths=%s\n", shown)
	}
	fmt.Fprintf(&b, "%s=%s\n\n[Install]\nWantedBy=multi-user.target\n", access, s.Dir)
	return b.Bytes()
}

// publicFiles returns the files of /etc that a program with users, names and TLS reads, where hosts have them.
func publicFiles() []string {
	return []string{
		"-/etc/passwd", "-/etc/group", "-/etc/nsswitch.conf", "-/etc/hosts", "-/etc/resolv.conf", "-/etc/localtime",
		"-/etc/ssl/certs", "-/etc/pki/tls/certs", "-/etc/pki/ca-trust",
	}
}

// capability returns the capability to listen on a privileged port, or "".
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

// mark is the first line of our files. A cluster's registry has another one.
const mark = hostfile.Author + " registry install."

// spec returns this host's service.
func (w *installation) spec() Spec {
	s := Spec{
		Mark: mark, Description: "Container registry of this site", User: User, UserFile: usersPath,
		Dir: w.Dir, Readable: []string{keyPath, htpasswdPath}, Command: w.command(), Program: w.Own, Listen: w.Listen,
	}
	if w.Own {
		s.Readable = append(s.Readable, configPath)
	} else {
		s.Readable = append(s.Readable, pullersPath)
	}
	return s
}

func (w *installation) command() []string {
	program := path.Join(programDir, w.Program.Name)
	if w.Own {
		return []string{program, "serve", configPath}
	}
	args := []string{
		program, "registry", "serve", "--dir", w.Dir, "--listen", w.Listen,
		"--tls-cert", certPath, "--tls-key", keyPath, "--htpasswd", htpasswdPath, "--pull-htpasswd", pullersPath,
	}
	if w.Delete {
		args = append(args, "--delete")
	}
	if w.Metrics != "" {
		args = append(args, "--metrics", w.Metrics)
	}
	return args
}
