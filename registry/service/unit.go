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

// A Spec is a registry's service on a host: its user, sandbox and limits. All registries of kkbundle share it.
type Spec struct {
	Mark        string // first line of our files
	Description string
	User        string   // runs the registry and owns Dir
	UserFile    string   // path of UserText on the host
	Dir         string   // content; the only writable directory
	ReadOnly    bool     // Dir is not writable, either
	Closed      string   // a directory above Dir that only root may enter; "" if there is none
	Readable    []string // root's files that User must read: keys, logins
	Command     []string
	Program     bool   // Command is the registry program, which cannot reload its files at SIGHUP
	Listen      string // HOST:PORT; a port below 1024 requires a capability
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
		{"chown", "-RH", s.User + ":" + s.User, s.Dir}, // Dir may be a link to another disk
	}
}

// UnitText returns the systemd unit. Its sandbox is for systemd 239 and later; older versions warn about unknown
// settings.
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
	bind, access := "BindPaths", "ReadWritePaths"
	if s.ReadOnly {
		bind, access = "BindReadOnlyPaths", "ReadOnlyPaths"
	}
	if s.Closed != "" { // the service sees only its own directory there
		fmt.Fprintf(&b, "TemporaryFileSystem=%s:ro\n%s=%s\n", s.Closed, bind, s.Dir)
	}
	for _, dir := range foreignKeys() {
		fmt.Fprintf(&b, "InaccessiblePaths=-%s\n", dir)
	}
	fmt.Fprintf(&b, "%s=%s\n\n[Install]\nWantedBy=multi-user.target\n", access, s.Dir)
	return b.Bytes()
}

// foreignKeys returns directories with private keys and credentials of other services. Their files belong to root
// only; the unit hides them in case one of them does not.
func foreignKeys() []string {
	return []string{
		"/etc/kubernetes", "/etc/rancher", "/etc/kkbundle/etcd", "/etc/kkbundle/pki", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/ssh",
		"/etc/containerd", "/var/lib/etcd", "/var/lib/kubelet", "/var/lib/rancher",
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
