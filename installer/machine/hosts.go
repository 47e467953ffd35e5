package machine

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
)

// hostsPath is the host's table of names, hostsTemplates the directory of cloud-init's templates for it.
const (
	hostsPath      = "/etc/hosts"
	hostsTemplates = "/etc/cloud/templates"
)

// hostsByCloudInit matches the setting with which cloud-init writes /etc/hosts from a template at each boot. With
// "localhost" it keeps the other lines: https://docs.cloud-init.io/en/latest/reference/modules.html#update-etc-hosts
const hostsByCloudInit = `^[^#]*manage_etc_hosts["']?[[:space:]]*:[[:space:]]*["']?(true|template|yes|on)`

// cloudConfigs returns the files with cloud-init's configuration, those of the provider's user data among them. The
// setting cannot be switched off in /etc/cloud: user data override it.
func cloudConfigs() []string {
	const instance = "/var/lib/cloud/instance"
	return []string{
		"/etc/cloud/cloud.cfg", "/etc/cloud/cloud.cfg.d", "/run/cloud-init/combined-cloud-config.json",
		instance + "/cloud-config.txt", instance + "/user-data.txt", instance + "/vendor-data.txt",
	}
}

// HostsTask adds all hosts to /etc/hosts by their names in the inventory, and to the templates from which cloud-init
// writes it.
func HostsTask() task.Task {
	return task.Task{
		Name:        "hosts-file",
		Independent: true,
		Follows:     true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			files, err := hostsFiles(ctx, t)
			for _, f := range files {
				if !bytes.Equal(f.have, f.want) {
					task.Because(ctx, "%s %s", f.path, task.LineDifference(f.have, f.want))
				}
			}
			return err == nil && !slices.ContainsFunc(files, edited.isDifferent), err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			files, err := hostsFiles(ctx, t)
			if err != nil {
				return err
			}
			return editHosts(ctx, t, files)
		},
	}
}

// An edited file is a file of the host with lines of kkbundle.
type edited struct {
	path       string
	have, want []byte
}

func (e edited) isDifferent() bool { return !bytes.Equal(e.have, e.want) }

func editHosts(ctx context.Context, t *task.Host, files []edited) error {
	for _, f := range files {
		if !f.isDifferent() {
			continue
		}
		if err := t.Edit(ctx, f.path, f.want); err != nil {
			return err
		}
	}
	return nil
}

// hostsFiles returns /etc/hosts and, if cloud-init writes it, its templates.
func hostsFiles(ctx context.Context, t *task.Host) ([]edited, error) {
	have, want, err := HostsFile(ctx, t)
	if err != nil {
		return nil, err
	}
	files := []edited{{hostsPath, have, want}}
	args := append([]string{"grep", "-Eirqs", "-e", hostsByCloudInit, "--"}, cloudConfigs()...)
	if writes, err := t.Test(ctx, args...); err != nil || !writes {
		return files, err
	}
	lines, err := hostsLines(ctx, t)
	if err != nil {
		return nil, err
	}
	templates, err := hostsTemplatesOf(ctx, t)
	for i := range templates {
		templates[i].want = WithBlock(templates[i].have, lines)
	}
	return append(files, templates...), err
}

// hostsTemplatesOf returns cloud-init's templates of /etc/hosts, which exist for several distributions.
func hostsTemplatesOf(ctx context.Context, t *task.Host) ([]edited, error) {
	if there, err := t.Test(ctx, "test", "-d", hostsTemplates); err != nil || !there {
		return nil, err
	}
	out, err := t.Output(ctx, "find", hostsTemplates, "-maxdepth", "1", "-type", "f", "-name", "hosts.*.tmpl")
	if err != nil {
		return nil, err
	}
	var files []edited
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		data, err := t.Read(ctx, path)
		if err != nil {
			return nil, err
		}
		files = append(files, edited{path, data, data})
	}
	return files, nil
}

// changedHosts returns the files with lines of kkbundle, without these.
func changedHosts(ctx context.Context, t *task.Host) ([]edited, error) {
	files, err := hostsTemplatesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	have, err := t.Read(ctx, hostsPath)
	switch {
	case err == nil:
		files = append(files, edited{hostsPath, have, have})
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	for i := range files {
		files[i].want = WithBlock(files[i].have, nil)
	}
	return slices.DeleteFunc(files, func(e edited) bool { return !e.isDifferent() }), nil
}

// HostsRestored reports whether no table of names of the host has lines of kkbundle.
func HostsRestored(ctx context.Context, t *task.Host) (bool, error) {
	files, err := changedHosts(ctx, t)
	for _, f := range files {
		task.Because(ctx, "%s", f.path)
	}
	return len(files) == 0, err
}

// RestoreHosts removes kkbundle's lines from the host's tables of names.
func RestoreHosts(ctx context.Context, t *task.Host) error {
	files, err := changedHosts(ctx, t)
	if err != nil {
		return err
	}
	return editHosts(ctx, t, files)
}

// HostsFile returns the current and the wanted /etc/hosts.
func HostsFile(ctx context.Context, t *task.Host) (have, want []byte, err error) {
	have, err = t.Read(ctx, hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	lines, err := hostsLines(ctx, t)
	return have, WithBlock(have, lines), err
}

// hostsLines returns a line for each address of the hosts, and the endpoint's.
func hostsLines(ctx context.Context, t *task.Host) ([]string, error) {
	var lines []string
	for _, one := range t.Site.Hosts {
		for _, ip := range one.Addresses() {
			lines = append(lines, ip.String()+" "+one.Name)
		}
	}
	line, err := endpointLine(ctx, t)
	if line != "" {
		lines = append(lines, line)
	}
	return lines, err
}
