package installer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	renewScript  = "/usr/local/lib/kkbundle/renew-certificates"
	renewService = "kkbundle-certificates.service"
	renewTimer   = "kkbundle-certificates.timer"
)

// certsTimerTask makes every control plane renew its certificates by itself, each at another hour: several that restart
// etcd at the same time would be without a quorum.
func certsTimerTask(c *manifest.Cluster) Task {
	task := Task{Name: "certificates-timer", Roles: []manifest.Role{manifest.RoleControlPlane}}
	if c.Certificates.Renew != "auto" {
		task.Done = func(ctx context.Context, t *Target) (bool, error) {
			there, err := t.test(ctx, "test", "-e", "/etc/systemd/system/"+renewTimer)
			return !there, err
		}
		task.Do = func(ctx context.Context, t *Target) error { return t.removeUnit(ctx, renewTimer) }
		return task
	}
	task.Leaves = Leaves{Units: []string{renewTimer, renewService}, Paths: []string{renewScript}}
	return settle(task, func(_ context.Context, t *Target) (setting, error) {
		number := slices.Index(t.run.withRole(manifest.RoleControlPlane), t)
		return setting{
			files: []textFile{
				{renewScript, 0o755, renewCertificates(t.run.cluster)},
				{"/etc/systemd/system/" + renewService, 0o644, []byte(renewServiceText)},
				{"/etc/systemd/system/" + renewTimer, 0o644, renewTimerText(number)},
			},
			units: []string{renewTimer},
		}, nil
	})
}

// renewCertificates is what the timer runs.
func renewCertificates(c *manifest.Cluster) []byte {
	return fmt.Appendf(nil, `#!/bin/sh
# Written by kkbundle: renews this control plane's certificates when one of them ends within %[1]d days, and restarts what uses them.
rc=0
soon=$(%[2]s expires %[1]d %[3]s %[3]s/etcd) || rc=$?
if [ "$rc" = 3 ]; then echo "nothing ends within %[1]d days"; exit 0; fi
if [ "$rc" != 0 ]; then exit "$rc"; fi
echo "these end soon: $soon"
/usr/local/bin/kubeadm certs renew all || exit 1
%[4]sexit 0
`, certsDays, host.HelperPath, pkiDir, restartScript(c))
}

// restartScript restarts the control plane as restartControlPlane does, without looking at what comes of it.
func restartScript(c *manifest.Cluster) string {
	groups := controlPlaneProcesses(c)
	text := againScript + "before=$(pgrep --full -- '^(" + strings.Join(slices.Concat(groups...), "|") + ") .*/etc/kubernetes/' | tr '\\n' ' ')\n"
	for _, group := range groups {
		for _, name := range group {
			text += fmt.Sprintf("again %d %s $before\n", restartGrace, name)
		}
		// what comes next would not find it
		text += fmt.Sprintf("for _ in $(seq 60); do pgrep --full -- '^%s .*/etc/kubernetes/' >/dev/null && break; sleep 1; done\n", group[0])
	}
	return text
}

const renewServiceText = `# Written by kkbundle.
[Unit]
Description=Renew the certificates of this control plane
ConditionPathExists=/etc/kubernetes/admin.conf

[Service]
Type=oneshot
ExecStart=` + renewScript + `
`

// renewTimerText is for the control plane of that number: every night, at an hour of its own.
func renewTimerText(number int) []byte {
	const hours = 24
	return fmt.Appendf(nil, `# Written by kkbundle.
[Unit]
Description=Look for certificates of this control plane that end soon

[Timer]
OnCalendar=*-*-* %02d:00:00
RandomizedDelaySec=20min
Persistent=true

[Install]
WantedBy=timers.target
`, (number+1)%hours)
}
