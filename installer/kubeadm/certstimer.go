package kubeadm

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	renewScript  = task.ProgramDir + "/bin/renew-certificates"
	renewService = "kkbundle-certificates.service"
	// RenewTimer is the systemd timer that renews certificates.
	RenewTimer = "kkbundle-certificates.timer"
)

// CertsTimerTask makes every control plane renew its certificates at an hour of its own: simultaneous restarts of etcd
// would cost the quorum. The hour is the control plane's position in the inventory and changes with it.
func CertsTimerTask(c *manifest.Cluster) task.Task {
	step := task.Task{Name: "certificates-timer", Roles: []manifest.Role{manifest.RoleControlPlane}, Follows: true}
	if c.Certificates.Renew != manifest.RenewAuto {
		step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.Test(ctx, "test", "-e", "/etc/systemd/system/"+RenewTimer)
			return !there, err
		}
		step.Do = func(ctx context.Context, t *task.Host) error { return t.RemoveUnit(ctx, RenewTimer) }
		return step
	}
	step.Leaves = task.Leaves{Units: []string{RenewTimer, renewService}, Paths: []string{renewScript}}
	return task.Settle(step, func(_ context.Context, t *task.Host) (task.Setting, error) {
		number := slices.Index(t.Site.WithRole(manifest.RoleControlPlane), t)
		return task.Setting{
			Files: []task.File{
				{Path: renewScript, Mode: 0o755, Data: renewCertificates(t)},
				{Path: "/etc/systemd/system/" + renewService, Mode: 0o644, Data: []byte(renewServiceText)},
				{Path: "/etc/systemd/system/" + RenewTimer, Mode: 0o644, Data: renewTimerText(number)},
			},
			Apply: func(ctx context.Context,
				t *task.Host,
			) error {
				return t.RemoveEarlier(ctx, path.Base(renewScript))
			},
			Units: []string{RenewTimer},
		}, nil
	})
}

//go:embed scripts/renew-certificates.sh
var renewCertificatesScript string

// renewCertificates returns the timer's script.
func renewCertificates(t *task.Host) []byte {
	return task.ScriptFile(
		host.Script("renew-certificates.sh", renewCertificatesScript, strconv.Itoa(RenewDays), host.HelperPath,
			kube.PKIDir),
		RestartScript(t, RestartStep, restartWhole, ControlPlaneProcesses(t.Site.Cluster)...))
}

const renewServiceText = hostfile.Mark + `
[Unit]
Description=Renew the certificates of this control plane
ConditionPathExists=/etc/kubernetes/admin.conf

[Service]
Type=oneshot
ExecStart=` + renewScript + `
`

// renewTimerText returns the daily timer of the control plane with this number.
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

// RenewDays is the number of days before expiry when the timer starts to renew certificates, which last a year.
const RenewDays = 60
