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

// mark is how files of ours begin. A cluster's registry has another one.
const mark = hostfile.Author + " registry install."

// Hardening is what a registry's unit takes from its process, for systemd 239 and later, older ones with a warning.
const Hardening = `LockPersonality=yes
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
`

const usersText = mark + "\n" + `u ` + User + ` - "kkbundle registry" - -
`

// privilegedPorts are those below which listening takes a capability.
const privilegedPorts = 1024

func (w *work) unit() []byte {
	var b bytes.Buffer
	b.WriteString(mark + `
[Unit]
Description=Container registry of this site
After=network-online.target
Wants=network-online.target

[Service]
User=` + User + `
Group=` + User + `
`)
	fmt.Fprintf(&b, "ExecStart=%s\n", strings.Join(w.command(), " "))
	if w.Own { // the registry program looks for a collector of its traces otherwise
		b.WriteString("Environment=OTEL_TRACES_EXPORTER=none\n")
	} else {
		b.WriteString("ExecReload=/bin/kill -HUP $MAINPID\n")
	}
	b.WriteString("Restart=always\nRestartSec=2\nTimeoutStopSec=30\nLimitNOFILE=65536\n")
	capability := ""
	if _, text, err := net.SplitHostPort(w.Listen); err == nil {
		if port, err := strconv.Atoi(text); err == nil && port < privilegedPorts {
			capability = "CAP_NET_BIND_SERVICE"
		}
	}
	fmt.Fprintf(&b, "AmbientCapabilities=%s\nCapabilityBoundingSet=%s\n", capability, capability)
	b.WriteString(Hardening)
	b.WriteString(`PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
`)
	fmt.Fprintf(&b, "ReadWritePaths=%s\n\n[Install]\nWantedBy=multi-user.target\n", w.Dir)
	return b.Bytes()
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
