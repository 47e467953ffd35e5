package plan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	leafTimer   = "kkbundle-leaf-certificates.timer"
	leafService = "kkbundle-leaf-certificates.service"
	leafScript  = task.ProgramDir + "/bin/renew-leaf-certificates"
)

// A leafGroup is certificates on a host with the authority that signs them there.
type leafGroup struct {
	authority task.PairFiles
	pairs     []task.PairFiles
	// units restart after a renewal. There are none for etcd and its clients, which read their files for every
	// connection.
	units []string
}

// leafGroups returns the certificates that a host renews by itself: those of the site's registry and of external etcd.
func leafGroups(t *task.Host) []leafGroup {
	var groups []leafGroup
	c := t.Site.Cluster
	if c.Etcd.Type == manifest.EtcdExternal {
		switch {
		case t.Is(manifest.RoleEtcd):
			groups = append(groups, leafGroup{authority: etcd.AuthorityFiles(), pairs: etcd.LeafFiles(true)})
		case t.Is(manifest.RoleControlPlane):
			groups = append(groups, leafGroup{authority: etcd.ClientAuthorityFiles(), pairs: etcd.LeafFiles(false)})
		}
	}
	if c.ImageRegistry.Type.Installed() && t.Site.IsRegistry(t) {
		groups = append(groups, leafGroup{
			siteregistry.AuthorityFiles(),
			[]task.PairFiles{siteregistry.CertificateFiles()},
			siteregistry.Of(c).Units,
		})
	}
	return groups
}

// leafRoles returns the roles of hosts with certificates that they renew by themselves.
func leafRoles(c *manifest.Cluster) []manifest.Role {
	var roles []manifest.Role
	if c.Etcd.Type == manifest.EtcdExternal {
		roles = append(roles, manifest.RoleEtcd, manifest.RoleControlPlane)
	}
	if c.ImageRegistry.Type.Installed() {
		roles = append(roles, manifest.RoleRegistry)
	}
	return roles
}

// leafTimerTasks make hosts renew the certificates of the registry and of external etcd, each at an hour of its own.
// The authority's key is on these hosts for it, readable by root only. kubeadm leaves its own on control planes, too.
func leafTimerTasks(c *manifest.Cluster) []task.Task {
	roles := leafRoles(c)
	if len(roles) == 0 {
		return nil
	}
	step := task.Task{Name: "certificates-leaf-timer", Roles: roles, Follows: true}
	if c.Certificates.Renew != manifest.RenewAuto {
		step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.Test(ctx, "test", "-e", task.UnitDir+leafTimer)
			return !there, err
		}
		step.Do = removeLeafTimer
		return []task.Task{step}
	}
	step.Leaves = task.Leaves{
		Units: []string{leafTimer, leafService},
		Paths: []string{leafScript, path.Dir(siteregistry.AuthorityFiles().Key)},
	}
	return []task.Task{task.Settle(step, leafTimerSetting)}
}

// removeLeafTimer removes the timer with its script, and the authorities' keys that are on the host for it alone.
func removeLeafTimer(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, "rm", "-f", leafScript, siteregistry.AuthorityFiles().Key,
		etcd.ClientAuthorityFiles().Key); err != nil {
		return err
	}
	return t.RemoveUnit(ctx, leafTimer)
}

func leafTimerSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	var files []task.File
	script := "#!/bin/sh\n" + hostfile.Mark + "\nset -e\n"
	for _, group := range leafGroups(t) {
		script += task.CommandLine(renewCommand(group, kubeadm.RenewDays)) + " || [ $? = 3 ] # nothing to renew\n"
		from := map[task.PairFiles]task.PairFiles{
			siteregistry.AuthorityFiles(): {Cert: task.CACertFile, Key: task.CAKeyFile},
			etcd.ClientAuthorityFiles():   etcd.AuthorityInWorkDir(),
		}
		own, placed := from[group.authority]
		if !placed {
			continue // etcd's own task places it
		}
		pair, err := t.Site.Dir.ReadPair(own)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another work directory made the host's certificates; what is there stays
		}
		if err != nil {
			return task.Setting{}, fmt.Errorf("authority of certificates of %s: %w", t.Name, err)
		}
		files = append(files, group.authority.Files(pair)...)
	}
	number := slices.Index(t.Site.Hosts, t)
	return task.Setting{
		Files: append(
			files,
			task.File{Path: leafScript, Mode: 0o755, Data: []byte(script)},
			task.File{Path: task.UnitDir + leafService, Mode: 0o644, Data: []byte(leafServiceText)},
			task.File{Path: task.UnitDir + leafTimer, Mode: 0o644, Data: leafTimerText(number)},
		),
		Units: []string{leafTimer},
	}, nil
}

const leafServiceText = hostfile.Mark + `
[Unit]
Description=Renew the certificates of the registry and of etcd on this host

[Service]
Type=oneshot
ExecStart=` + leafScript + `
`

// renewCommand returns the command that renews a group's certificates which end within days.
func renewCommand(group leafGroup, days int) []string {
	args := []string{
		host.HelperPath, "renew", "--restart=" + strings.Join(group.units, ","), strconv.Itoa(days),
		group.authority.Cert, group.authority.Key,
	}
	for _, p := range group.pairs {
		args = append(args, p.Cert, p.Key)
	}
	return args
}

// leafTimerText returns the daily timer of the host with this number. Control planes renew kubeadm's certificates
// half an hour before or after.
func leafTimerText(number int) []byte {
	const hours = 24
	return fmt.Appendf(nil, hostfile.Mark+`
[Unit]
Description=Look for certificates of the registry and of etcd that end soon

[Timer]
OnCalendar=*-*-* %02d:30:00
RandomizedDelaySec=20min
Persistent=true

[Install]
WantedBy=timers.target
`, (number+1)%hours)
}

// ReissueTasks replace the certificates of the registry and of external etcd, one host after the other. With before,
// only if one in the work directory ends within that time.
func ReissueTasks(c *manifest.Cluster, before time.Duration) []task.Task {
	var tasks []task.Task
	if len(leafRoles(c)) == 0 {
		return nil
	}
	tasks = append(tasks, task.Task{
		Name: "reissue-certificates", Where: task.Here,
		Done: func(_ context.Context, t *task.Host) (bool, error) {
			due, err := dueLeaves(t.Site, before)
			return len(due) == 0, err
		},
		Do: func(_ context.Context, t *task.Host) error {
			due, err := dueLeaves(t.Site, before)
			for _, f := range due {
				if err == nil {
					err = t.Site.Dir.Remove(f.Cert) // the next tasks issue a new one
				}
			}
			return err
		},
	})
	if c.ImageRegistry.Type.Installed() {
		tasks = append(tasks, siteregistry.CertificatesTask(), siteregistry.ReissueTask(c))
	}
	if c.Etcd.Type == manifest.EtcdExternal {
		tasks = append(tasks, etcd.ReissueTasks()...)
	}
	return tasks
}

// dueLeaves returns the certificates in the work directory that end within a time, or all if it is 0.
func dueLeaves(s *task.Site, before time.Duration) ([]task.PairFiles, error) {
	all, err := etcd.PairsInWorkDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var due []task.PairFiles
	for _, f := range append(all, task.RegistryPair()) {
		pair, err := s.Dir.ReadPair(f)
		if err != nil {
			continue // nothing to replace
		}
		cert, err := pki.ParseCertificate(pair.Cert)
		if err != nil || before == 0 || cert.NotAfter.Before(s.Now().Add(before)) {
			due = append(due, f)
		}
	}
	return due, nil
}

// IsLeaf reports whether a host renews the certificate with this path by itself.
func IsLeaf(t *task.Host, name string) bool {
	return slices.ContainsFunc(leafGroups(t), func(g leafGroup) bool {
		return slices.ContainsFunc(g.pairs, func(p task.PairFiles) bool { return p.Cert == name })
	}) && !strings.HasSuffix(name, "ca.crt")
}
