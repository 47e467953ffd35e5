package marks

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
)

// SiteValues has the values of the bundle's table that the last install or upgrade was given, without secret ones. It
// is in the work directory, of the form of --values.
const SiteValues = "values.yaml"

// SiteGroups has a word, on or off, for each group of the bundle of the last install or upgrade. It is in the work
// directory.
const SiteGroups = "groups.yaml"

// Data saved before upgrades and rollbacks, in the work directory.
const (
	// SavedDir has a directory for each of the last upgrades and rollbacks. One that is being written is
	// SavedUnfinished.
	SavedDir        = "upgrade"
	SavedUnfinished = SavedDir + "/unfinished"
	// SavedNow names the version and the directory of the upgrade or rollback in progress.
	SavedNow = SavedDir + "/under-way"
	// UpgradeReport is the report of the last complete upgrade from this work directory, for estimates; before there is
	// one, that of an upgrade that ended between nodes.
	UpgradeReport = SavedDir + "/report.json"
)

// SavedFor returns the version of the upgrade or rollback in progress whose data are saved, "" if there is none.
func SavedFor(dir *task.WorkDir) (version string, err error) {
	data, err := dir.Read(SavedNow)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	version, _, _ = strings.Cut(string(data), " ")
	return version, err
}

// Save records that the data of an upgrade or rollback to a version are saved in a directory.
func Save(dir *task.WorkDir, version, saved string) error {
	return dir.Write(SavedNow, []byte(version+" "+saved+"\n"))
}

// EndSaved records the end of an upgrade or rollback: the next one saves anew.
func EndSaved(dir *task.WorkDir) error { return dir.Remove(SavedNow) }
