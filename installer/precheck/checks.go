package precheck

import (
	"slices"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/manifest"
)

// Checks lists all checks in the order of a report. Each group is in the file of its name.
func Checks() []Check { return checksFor(network.All()) }

func checksFor(known network.Table) []Check {
	return slices.Concat(
		// of the cluster
		supportChecks(), bundleChecks(), groupChecks(), versionChecks(), answerChecks(), addressChecks(),
		pluginChecks(known),
		endpointChecks(),
		settingChecks(), machineChecks(), kernelChecks(known), moduleChecks(), cgroupChecks(), sysctlChecks(),
		programChecks(), linkageChecks(), spaceChecks(),
		networkChecks(), linkChecks(known), portChecks(), nameChecks(), filterChecks(), selinuxChecks(),
		etcdChecks(), providedEtcdChecks(), runtimeChecks(), kubeletChecks(), leftoverChecks(),
		registryChecks(), nfsChecks(), clockChecks(), autostartChecks(), accessChecks(),
	)
}

func cluster() []manifest.Role      { return []manifest.Role{manifest.RoleCluster} }
func controlPlane() []manifest.Role { return []manifest.Role{manifest.RoleControlPlane} }

// warnUnlessInstall is the level of conditions that only kkbundle's own installation handles.
func warnUnlessInstall(s *Subject) Level {
	if s.Input.Install {
		return Block
	}
	return Warn
}
