package hosts

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// instancesFile says how many inotify instances a user may have. All hosts of all labs are one user, root, and each
// host takes some 15 of the kernel's 128: kube-proxy and others that get none end with "too many open files".
const (
	instancesFile = "/proc/sys/fs/inotify/max_user_instances"
	instances     = 8192 // what kkbundle gives a node
)

// makeRoom raises the machine's limits to what hosts need, where they are lower. They stay so: other labs may be up.
func (l *Lab) makeRoom() error {
	data, err := os.ReadFile(instancesFile)
	if err != nil {
		return fmt.Errorf("the machine's limits: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(data))); err != nil || now >= instances {
		return err
	}
	if err := os.WriteFile(instancesFile, []byte(strconv.Itoa(instances)), 0o644); err != nil {
		return fmt.Errorf("the machine's limits: %w", err)
	}
	l.say("%s was %s and is %d now", instancesFile, strings.TrimSpace(string(data)), instances)
	return nil
}
