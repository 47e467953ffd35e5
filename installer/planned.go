package installer

import (
	"github.com/kkbundle/kkbundle/manifest"
)

// What install cannot do yet. Each task here says what it needs, so that a bundle with it can be built, checked and proven
// complete today; Cluster.CheckInstall refuses what asks for one. Whoever gives a task its Do deletes its row there.

const executable = 0o755

// planned tells whether the task only says what it needs.
func (t Task) planned() bool { return t.Do == nil }

// harborTask installs Harbor with the containers that its installer brings.
func harborTask() Task {
	return Task{
		Name:  "harbor",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Files: append(dockerFiles(),
			Place{"docker-compose", "", "/usr/local/bin/docker-compose", executable},
			Place{"harbor", "", "/opt/harbor/installer.tgz", 0o644},
		),
		Packages: []string{"iptables"},
	}
}
