package installer

import (
	"context"
	_ "embed" // scripts
	"fmt"
	"slices"
	"strconv"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	renewScript  = "/usr/local/lib/kkbundle/renew-certificates"
	renewService = "kkbundle-certificates.service"
	renewTimer   = "kkbundle-certificates.timer"
)

// certsTimerTask makes every control plane renew its certificates by itself, each at another hour: several that restart
// etcd at the same time would be without a quorum. The hour is the place among them, which others change that come and go.
func certsTimerTask(c *manifest.Cluster) Task {
	task := Task{Name: "certificates-timer", Roles: []manifest.Role{manifest.RoleControlPlane}, Follows: true}
	if c.Certificates.Renew != manifest.RenewAuto {
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
				{renewScript, 0o755, t.renewCertificates()},
				{"/etc/systemd/system/" + renewService, 0o644, []byte(renewServiceText)},
				{"/etc/systemd/system/" + renewTimer, 0o644, renewTimerText(number)},
			},
			units: []string{renewTimer},
		}, nil
	})
}

//go:embed scripts/renew-certificates.sh
var renewCertificatesScript string

// renewCertificates is what the timer runs.
func (t *Target) renewCertificates() []byte {
	return scriptFile(
		host.Script("renew-certificates.sh", renewCertificatesScript, strconv.Itoa(certsDays), host.HelperPath, pkiDir),
		t.restartScript(restartStep, restartWhole, controlPlaneProcesses(t.run.cluster)...))
}

const renewServiceText = hostfile.Mark + `
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
	return fmt.Appendf(nil, hostfile.Mark+`
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
