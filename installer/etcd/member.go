package etcd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// LeaderTimeout limits the time until the members have elected a leader.
	LeaderTimeout = 3 * time.Minute
	// promoteTimeout limits the time until a learner has all data: etcd's maximum of 8 GiB at 30 MB/s.
	promoteTimeout = 5 * time.Minute
)

// A Member is a member as etcdctl lists it.
type Member struct {
	ID         uint64   `json:"ID"`
	Name       string   `json:"name"` // "" if it was never started
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"isLearner"`
}

// HexID returns the member's ID as etcdctl takes it.
func (m Member) HexID() string { return strconv.FormatUint(m.ID, 16) }

// quorumError returns the error of a change that would cost etcd its quorum or its data.
func quorumError(t *task.Host, reason string) error {
	return plain.Advise(errors.New("etcd on "+t.Name+": "+reason),
		"start the members that are down (systemctl start etcd on their hosts) and run again; if more than half are lost for good, restore a backup with kkbundle etcd restore")
}

// CtlArgs returns etcdctl's command line with endpoints and certificates.
func CtlArgs(t *task.Host, endpoints ...string) []string {
	files := ClientFiles(t)
	return []string{"etcdctl", "--endpoints=" + strings.Join(endpoints, ","), "--cacert=" + files.ca, "--cert=" +
		files.Cert, "--key=" + files.Key}
}

// ClientFiles returns the certificate files of etcd clients on the host.
func ClientFiles(t *task.Host) clientFiles {
	if t.Site.Cluster.Etcd.Type == manifest.EtcdInternal {
		return stackedClientFiles()
	}
	return etcdClientFiles()
}

// etcdctl runs etcdctl on the host against these endpoints and returns its output.
func etcdctl(ctx context.Context, t *task.Host, endpoints []string, args ...string) ([]byte, error) {
	return t.Output(ctx, slices.Concat(CtlArgs(t, endpoints...), []string{"--dial-timeout=3s", "--command-timeout=10s"},
		args)...)
}

// CheckHealth returns nil if the host's member answers and has a leader and a quorum.
func CheckHealth(ctx context.Context, t *task.Host) error {
	_, err := etcdctl(ctx, t, []string{Endpoint(t)}, "endpoint", "health")
	return err
}

// isHealthy reports whether a member that was started is healthy, asked from the host.
func isHealthy(ctx context.Context, t *task.Host, m Member) (bool, error) {
	if len(m.ClientURLs) == 0 {
		return false, nil
	}
	_, err := etcdctl(ctx, t, m.ClientURLs[:1], "endpoint", "health")
	return task.Succeeded(err)
}

// listMembers lists the members by a linearizable read, which needs a quorum.
func listMembers(ctx context.Context, t *task.Host, endpoints ...string) ([]Member, error) {
	out, err := etcdctl(ctx, t, endpoints, "member", "list", "--write-out=json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Members []Member `json:"members"`
	}
	if err := capped.JSON(out, capped.MaxValues, &list); err != nil {
		return nil, fmt.Errorf("etcd member list from %s: %w", t.Name, err)
	}
	return list.Members, nil
}

// wasFormed reports whether the hosts have ever had a healthy etcd cluster.
func wasFormed(ctx context.Context, r *task.Site) (bool, error) {
	connected := r.Connected(manifest.RoleEtcd)
	for _, t := range connected {
		if there, err := marks.EtcdMember.Exists(ctx, t); err != nil || there {
			return there, err
		}
	}
	if len(connected) == len(r.WithRole(manifest.RoleEtcd)) {
		return false, nil
	}
	// Hosts outside this run may have one.
	if _, err := listMembers(ctx, connected[0], etcdEndpoints(r)...); err != nil {
		return false, fmt.Errorf(
			"cannot determine if etcd exists: this run excludes etcd hosts, and no member answers: %w", err)
	}
	return true, nil
}

// RunMember starts the host's member, restarts it with new settings, or joins the host to etcd.
func RunMember(ctx context.Context, t *task.Host) error {
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	formed, err := wasFormed(ctx, t.Site)
	if err != nil {
		return err
	}
	data, err := hasData(ctx, t)
	if err != nil {
		return err
	}
	members, unknown := currentMembers(ctx, t, formed)
	listed := findMember(t, members)
	switch {
	case !formed && (listed != nil || unknown != nil):
		err = form(ctx, t)
	case unknown != nil && !data:
		return quorumError(t, "the member has no data, and the other members do not answer: "+unknown.Error())
	case unknown != nil:
		err = Start(ctx, t) // harmless, and the others may be waiting for this member
	case data && listed != nil && listed.Name != "":
		err = restart(ctx, t, members)
	default:
		err = join(ctx, t, members)
	}
	if err != nil {
		return t.WithUnitLog(ctx, Unit, err)
	}
	return t.Systemctl(ctx, "enable", Unit)
}

// currentMembers lists the members. Before etcd is formed, it fails at once if no member runs.
func currentMembers(ctx context.Context, t *task.Host, formed bool) ([]Member, error) {
	if formed {
		return listMembers(ctx, t, etcdEndpoints(t.Site)...)
	}
	for _, other := range t.Site.Connected(manifest.RoleEtcd) {
		if active, err := other.Test(ctx, "systemctl", "is-active", "--quiet", Unit); err != nil {
			return nil, err
		} else if active {
			return listMembers(ctx, t, etcdEndpoints(t.Site)...)
		}
	}
	return nil, errors.New("no etcd member is running")
}

// findMember returns the host's member, nil if there is none.
func findMember(t *task.Host, members []Member) *Member {
	for i, m := range members {
		if slices.Contains(m.PeerURLs, PeerURL(t)) || m.Name == t.Name {
			return &members[i]
		}
	}
	return nil
}

func hasData(ctx context.Context, t *task.Host) (bool, error) {
	dir, err := DataDir(t)
	if err != nil {
		return false, err
	}
	return t.Test(ctx, "test", "-d", path.Join(dir, "member"))
}

// Start restarts the unit without waiting: a member is ready only when it has found the others.
func Start(ctx context.Context, t *task.Host) error {
	return t.Systemctl(ctx, "restart", "--no-block", Unit)
}

// form starts one of the first members, which know each other from the inventory.
func form(ctx context.Context, t *task.Host) error {
	var initial []string
	for _, m := range t.Site.WithRole(manifest.RoleEtcd) {
		initial = append(initial, m.Name+"="+PeerURL(m))
	}
	if err := writeInitial(ctx, t, "new", initial); err != nil {
		return err
	}
	return Start(ctx, t)
}

func writeInitial(ctx context.Context, t *task.Host, state string, initial []string) error {
	text := hostfile.Author + ". It counts as long as the data directory is empty.\n" + environment(
		"ETCD_INITIAL_CLUSTER", strings.Join(initial, ","),
		"ETCD_INITIAL_CLUSTER_STATE", state,
		"ETCD_INITIAL_CLUSTER_TOKEN", t.Site.Cluster.Metadata.Name,
	)
	return t.Write(ctx, task.File{Path: InitialEnv, Mode: 0o600, Data: []byte(text)})
}

// restart restarts a member if the others keep quorum, and waits until it is healthy.
func restart(ctx context.Context, t *task.Host, members []Member) error {
	if err := checkStop(ctx, t, members); err != nil {
		return err
	}
	if err := Start(ctx, t); err != nil {
		return err
	}
	if findMember(t, members).Learner { // an interrupted run did not promote the member
		return promote(ctx, t, members)
	}
	return task.Eventually(ctx, LeaderTimeout, func(ctx context.Context) error { return serves(ctx, t) })
}

// serves returns nil if the host's member is healthy, or has only the alarm NOSPACE, which a restart does not take
// back. Restarts with a larger quota precede that.
func serves(ctx context.Context, t *task.Host) error {
	ill := CheckHealth(ctx, t)
	if ill == nil {
		return nil
	}
	if list, err := Databases(ctx, t, false); err == nil && list[0].NoSpace {
		return list[0].Fault()
	}
	return ill
}

// checkStop refuses to stop a healthy member whose stop would cost the quorum. A single member may stop: etcd pauses.
func checkStop(ctx context.Context, t *task.Host, members []Member) error {
	voters := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Learner })
	self := findMember(t, voters)
	if self == nil || len(voters) == 1 {
		return nil
	}
	if works, err := task.Succeeded(CheckHealth(ctx, t)); err != nil || !works {
		return err
	}
	others := 0
	for _, m := range voters {
		if m.ID == self.ID {
			continue
		}
		if healthy, err := isHealthy(ctx, t, m); err != nil {
			return err
		} else if healthy {
			others++
		}
	}
	if need := len(voters)/2 + 1; others < need {
		return quorumError(t, fmt.Sprintf(
			"the member cannot be stopped: %d of the other %d members are healthy, %d must be", others, len(voters)-1,
			need))
	}
	return nil
}

// join adds the host to a running etcd: first as a learner, which does not count for the quorum until it has all data.
// The host's old member and lost members are removed first: etcd adds no member while one is missing.
func join(ctx context.Context, t *task.Host, members []Member) error {
	if err := t.Systemctl(ctx, "stop", Unit); err != nil {
		if there, _ := t.Test(ctx, "systemctl", "is-active", "--quiet", Unit); there {
			return err
		}
	}
	members, err := removeLost(ctx, t, members)
	if err != nil {
		return err
	}
	if err := moveDataAside(ctx, t); err != nil {
		return err
	}
	if findMember(t, members) == nil {
		others := endpointsOf(members)
		if _, err := etcdctl(ctx, t, others, "member", "add", t.Name, "--peer-urls="+PeerURL(t),
			"--learner"); err != nil {
			return err
		}
		if members, err = listMembers(ctx, t, others...); err != nil {
			return err
		}
	}
	initial := []string{t.Name + "=" + PeerURL(t)}
	for _, m := range members {
		if m.Name != "" {
			for _, url := range m.PeerURLs {
				initial = append(initial, m.Name+"="+url)
			}
		}
	}
	if err := writeInitial(ctx, t, "existing", initial); err != nil {
		return err
	}
	if err := Start(ctx, t); err != nil {
		return err
	}
	return promote(ctx, t, members)
}

// endpointsOf returns the client URLs of members; a member that was never started has none.
func endpointsOf(members []Member) []string {
	var list []string
	for _, m := range members {
		list = append(list, m.ClientURLs...)
	}
	return list
}

// removeLost removes the host's own member from before it lost its data, and unhealthy members that are not in the
// inventory. It returns the remaining members.
func removeLost(ctx context.Context, t *task.Host, members []Member) ([]Member, error) {
	var left []Member
	self := findMember(t, members)
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members),
		func(m Member) bool { return self != nil && m.ID == self.ID }))
	for _, m := range members {
		lost := self != nil && m.ID == self.ID && m.Name != ""
		if !lost && !slices.ContainsFunc(t.Site.WithRole(manifest.RoleEtcd),
			func(h *task.Host) bool { return findMember(h, []Member{m}) != nil }) {
			healthy, err := isHealthy(ctx, t, m)
			if err != nil {
				return nil, err
			}
			lost = !healthy
		}
		if !lost {
			left = append(left, m)
			continue
		}
		if _, err := etcdctl(ctx, t, others, "member", "remove", m.HexID()); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// moveDataAside keeps the data of a former membership under another name.
func moveDataAside(ctx context.Context, t *task.Host) error {
	dir, err := DataDir(t)
	if err != nil {
		return err
	}
	member, aside := path.Join(dir, "member"), path.Join(dir, marks.OldDataDir(t.Site))
	if there, err := t.Test(ctx, "test", "-d", member); err != nil || !there {
		return err
	}
	if err := t.Run(ctx, "mkdir", "-p", aside); err != nil {
		return err
	}
	return t.Run(ctx, "mv", member, aside+"/")
}

// promote makes a learner a voting member when it has all data.
func promote(ctx context.Context, t *task.Host, members []Member) error {
	self := findMember(t, members)
	if self == nil {
		return fmt.Errorf("%s was added to etcd but is not in its member list", t.Name)
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == self.ID }))
	if len(others) == 0 {
		return errors.New("etcd has no member except the new one")
	}
	if !self.Learner {
		return task.Eventually(ctx, LeaderTimeout, func(ctx context.Context) error { return CheckHealth(ctx, t) })
	}
	return task.Eventually(ctx, promoteTimeout, func(ctx context.Context) error {
		_, err := etcdctl(ctx, t, others, "member", "promote", self.HexID())
		return err
	})
}

// leave removes the host's member before reset removes etcd from the host. A reset of all hosts skips it.
func leave(ctx context.Context, t *task.Host) error {
	if t.Site.Scope.Whole() {
		return nil
	}
	active, err := t.Test(ctx, "systemctl", "is-active", "--quiet", Unit)
	if err != nil || !active {
		return err
	}
	members, err := listMembers(ctx, t, Endpoint(t))
	if err != nil {
		return err
	}
	self := findMember(t, members)
	if self == nil || len(members) == 1 {
		return nil
	}
	if err := checkStop(ctx, t, members); err != nil {
		return err
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == self.ID }))
	_, err = etcdctl(ctx, t, others, "member", "remove", self.HexID())
	return err
}
