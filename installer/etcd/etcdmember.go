package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// Patience is how long members may take to find each other and a leader.
	Patience = 3 * time.Minute
	// promotePatience is how long a new member may take to have all data: etcd's own limit of 8 GiB at 30 MB/s.
	promotePatience = 5 * time.Minute
)

// An Member is a member as etcd lists it.
type Member struct {
	ID         uint64   `json:"ID"`
	Name       string   `json:"name"` // "" if it was never started
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"isLearner"`
}

func (m Member) HexID() string { return strconv.FormatUint(m.ID, 16) }

// An EtcdQuorumError says that etcd cannot be worked on without losing what it holds.
type EtcdQuorumError struct{ Host, Reason string }

// Error names the host and the reason.
func (e *EtcdQuorumError) Error() string { return "etcd on " + e.Host + ": " + e.Reason }

// Hint says what to do about it.
func (e *EtcdQuorumError) Hint() string {
	return "start the members that are down (systemctl start etcd on their hosts) and run again; if more than half are lost for good, kkbundle etcd restore makes a new etcd of a backup"
}

// EtcdctlTo is etcdctl with what it needs to reach some endpoints.
func EtcdctlTo(t *task.Host, endpoints ...string) []string {
	files := ClientFiles(t)
	return []string{"etcdctl", "--endpoints=" + strings.Join(endpoints, ","), "--cacert=" + files.ca, "--cert=" + files.Cert, "--key=" + files.Key}
}

// ClientFiles are what clients of etcd on the host show.
func ClientFiles(t *task.Host) clientFiles {
	if t.Site.Cluster.Etcd.Type == manifest.EtcdInternal {
		return stackedClientFiles()
	}
	return etcdClientFiles()
}

// etcdctl runs etcdctl on the host against some endpoints, and returns what it prints.
func etcdctl(ctx context.Context, t *task.Host, endpoints []string, args ...string) ([]byte, error) {
	return t.Output(ctx, slices.Concat(EtcdctlTo(t, endpoints...), []string{"--dial-timeout=3s", "--command-timeout=10s"}, args)...)
}

// Healthy is nil if the host's member answers and has a leader and a quorum.
func Healthy(ctx context.Context, t *task.Host) error {
	return etcdHealthyAt(ctx, t, Endpoint(t))
}

func etcdHealthyAt(ctx context.Context, t *task.Host, endpoint string) error {
	_, err := etcdctl(ctx, t, []string{endpoint}, "endpoint", "health")
	return err
}

// etcdMembers lists the members, as a quorum of them agrees.
func etcdMembers(ctx context.Context, t *task.Host, endpoints ...string) ([]Member, error) {
	out, err := etcdctl(ctx, t, endpoints, "member", "list", "--write-out=json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Members []Member `json:"members"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("members of etcd, from %s: %w", t.Name, err)
	}
	return list.Members, nil
}

// etcdFormed tells whether there has been a working cluster of etcd on the hosts.
func etcdFormed(ctx context.Context, r *task.Site) (bool, error) {
	connected := r.Connected(manifest.RoleEtcd)
	for _, t := range connected {
		if there, err := t.Test(ctx, "test", "-e", etcdMemberPath); err != nil || there {
			return there, err
		}
	}
	if len(connected) == len(r.WithRole(manifest.RoleEtcd)) {
		return false, nil
	}
	// Hosts that were left out may have one.
	if _, err := etcdMembers(ctx, connected[0], etcdEndpoints(r)...); err != nil {
		return false, fmt.Errorf("whether there is an etcd already is not known: hosts of it are left out of this run, and none answers: %w", err)
	}
	return true, nil
}

// RunMember starts the host's member, or restarts it with new settings, or makes it one.
func RunMember(ctx context.Context, t *task.Host) error {
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	formed, err := etcdFormed(ctx, t.Site)
	if err != nil {
		return err
	}
	data, err := hasEtcdData(ctx, t)
	if err != nil {
		return err
	}
	members, unknown := askEtcd(ctx, t, formed)
	listed := listed(t, members)
	switch {
	case !formed && (listed != nil || unknown != nil):
		err = formEtcd(ctx, t)
	case unknown != nil && !data:
		return &EtcdQuorumError{t.Name, "it has no data, and the other members do not answer: " + unknown.Error()}
	case unknown != nil:
		err = StartEtcd(ctx, t) // a start harms nobody, and may be what the others wait for
	case data && listed != nil && listed.Name != "":
		err = restartEtcd(ctx, t, members)
	default:
		err = joinEtcd(ctx, t, members)
	}
	if err != nil {
		return t.WithUnitLog(ctx, Unit, err)
	}
	return t.Systemctl(ctx, "enable", Unit)
}

// askEtcd lists the members. As long as no member runs, nobody has to be waited for.
func askEtcd(ctx context.Context, t *task.Host, formed bool) ([]Member, error) {
	if formed {
		return etcdMembers(ctx, t, etcdEndpoints(t.Site)...)
	}
	for _, other := range t.Site.Connected(manifest.RoleEtcd) {
		if active, err := other.Test(ctx, "systemctl", "is-active", "--quiet", Unit); err != nil {
			return nil, err
		} else if active {
			return etcdMembers(ctx, t, etcdEndpoints(t.Site)...)
		}
	}
	return nil, errors.New("no member runs")
}

// listed finds the host among members.
func listed(t *task.Host, members []Member) *Member {
	for i, m := range members {
		if slices.Contains(m.PeerURLs, PeerURL(t)) || m.Name == t.Name {
			return &members[i]
		}
	}
	return nil
}

func hasEtcdData(ctx context.Context, t *task.Host) (bool, error) {
	dir, err := Data(t)
	if err != nil {
		return false, err
	}
	return t.Test(ctx, "test", "-d", path.Join(dir, "member"))
}

// StartEtcd starts the unit and does not wait: a member is ready when it has found the others.
func StartEtcd(ctx context.Context, t *task.Host) error {
	return t.Systemctl(ctx, "restart", "--no-block", Unit)
}

// formEtcd starts one of the first members, all of which know each other from the inventory.
func formEtcd(ctx context.Context, t *task.Host) error {
	var initial []string
	for _, m := range t.Site.WithRole(manifest.RoleEtcd) {
		initial = append(initial, m.Name+"="+PeerURL(m))
	}
	if err := writeInitial(ctx, t, "new", initial); err != nil {
		return err
	}
	return StartEtcd(ctx, t)
}

func writeInitial(ctx context.Context, t *task.Host, state string, initial []string) error {
	text := hostfile.Author + ". It counts as long as the data directory is empty.\n" + environment(
		"ETCD_INITIAL_CLUSTER", strings.Join(initial, ","),
		"ETCD_INITIAL_CLUSTER_STATE", state,
		"ETCD_INITIAL_CLUSTER_TOKEN", t.Site.Cluster.Metadata.Name,
	)
	return t.Write(ctx, task.File{Path: Initial, Mode: 0o600, Data: []byte(text)})
}

// restartEtcd restarts a member if the others do without it, and waits until it is back.
func restartEtcd(ctx context.Context, t *task.Host, members []Member) error {
	if err := canDoWithout(ctx, t, members); err != nil {
		return err
	}
	if err := StartEtcd(ctx, t); err != nil {
		return err
	}
	if listed(t, members).Learner { // an earlier run was interrupted before it was a full member
		return promoteEtcd(ctx, t, members)
	}
	return task.Eventually(ctx, Patience, func(ctx context.Context) error { return Healthy(ctx, t) })
}

// canDoWithout refuses to stop a member that works where the others alone are too few. A cluster of one member has no others:
// it pauses.
func canDoWithout(ctx context.Context, t *task.Host, members []Member) error {
	voters := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Learner })
	self := listed(t, voters)
	if self == nil || len(voters) == 1 {
		return nil
	}
	if works, err := task.Succeeded(Healthy(ctx, t)); err != nil || !works {
		return err
	}
	others := 0
	for _, m := range voters {
		if m.ID == self.ID || len(m.ClientURLs) == 0 {
			continue
		}
		works, err := task.Succeeded(etcdHealthyAt(ctx, t, m.ClientURLs[0]))
		if err != nil {
			return err
		}
		if works {
			others++
		}
	}
	if need := len(voters)/2 + 1; others < need {
		return &EtcdQuorumError{t.Name, fmt.Sprintf("it cannot be stopped: %d of the other %d members work, and %d have to", others, len(voters)-1, need)}
	}
	return nil
}

// joinEtcd makes the host a member of the cluster that is there: first as a learner, which counts for no quorum until it has
// all data. A member that was this host before, or is lost and in no inventory any more, goes first: etcd takes nobody in
// while one is missing.
func joinEtcd(ctx context.Context, t *task.Host, members []Member) error {
	if err := t.Systemctl(ctx, "stop", Unit); err != nil {
		if there, _ := t.Test(ctx, "systemctl", "is-active", "--quiet", Unit); there {
			return err
		}
	}
	members, err := forgetLost(ctx, t, members)
	if err != nil {
		return err
	}
	if err := setEtcdDataAside(ctx, t); err != nil {
		return err
	}
	if listed(t, members) == nil {
		others := endpointsOf(members)
		if _, err := etcdctl(ctx, t, others, "member", "add", t.Name, "--peer-urls="+PeerURL(t), "--learner"); err != nil {
			return err
		}
		if members, err = etcdMembers(ctx, t, others...); err != nil {
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
	if err := StartEtcd(ctx, t); err != nil {
		return err
	}
	return promoteEtcd(ctx, t, members)
}

// endpointsOf are the addresses of members that were started.
func endpointsOf(members []Member) []string {
	var list []string
	for _, m := range members {
		list = append(list, m.ClientURLs...)
	}
	return list
}

// forgetLost removes the member that this host was before it lost its data, and members that do not answer and are no host of
// the inventory. It returns those that are left.
func forgetLost(ctx context.Context, t *task.Host, members []Member) ([]Member, error) {
	var left []Member
	self := listed(t, members)
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return self != nil && m.ID == self.ID }))
	for _, m := range members {
		lost := self != nil && m.ID == self.ID && m.Name != ""
		if !lost && !slices.ContainsFunc(t.Site.WithRole(manifest.RoleEtcd), func(h *task.Host) bool { return listed(h, []Member{m}) != nil }) {
			works := false
			if len(m.ClientURLs) > 0 {
				var err error
				if works, err = task.Succeeded(etcdHealthyAt(ctx, t, m.ClientURLs[0])); err != nil {
					return nil, err
				}
			}
			lost = !works
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

// setEtcdDataAside keeps what a host has of an etcd that it is no member of.
func setEtcdDataAside(ctx context.Context, t *task.Host) error {
	dir, err := Data(t)
	if err != nil {
		return err
	}
	member, aside := path.Join(dir, "member"), path.Join(dir, BeforeName(t.Site))
	if there, err := t.Test(ctx, "test", "-d", member); err != nil || !there {
		return err
	}
	if err := t.Run(ctx, "mkdir", "-p", aside); err != nil {
		return err
	}
	return t.Run(ctx, "mv", member, aside+"/")
}

// promoteEtcd makes a learner a full member when it has all data.
func promoteEtcd(ctx context.Context, t *task.Host, members []Member) error {
	self := listed(t, members)
	if self == nil {
		return fmt.Errorf("%s was added to etcd, and is not among its members", t.Name)
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == self.ID }))
	if len(others) == 0 {
		return errors.New("etcd has no member but the new one")
	}
	if !self.Learner {
		return task.Eventually(ctx, Patience, func(ctx context.Context) error { return Healthy(ctx, t) })
	}
	return task.Eventually(ctx, promotePatience, func(ctx context.Context) error {
		_, err := etcdctl(ctx, t, others, "member", "promote", self.HexID())
		return err
	})
}

// leaveEtcd takes the host out of etcd before Reset takes etcd off it. Where everything goes, nobody has to be told.
func leaveEtcd(ctx context.Context, t *task.Host) error {
	if t.Site.Scope.Whole() {
		return nil
	}
	active, err := t.Test(ctx, "systemctl", "is-active", "--quiet", Unit)
	if err != nil || !active {
		return err
	}
	members, err := etcdMembers(ctx, t, Endpoint(t))
	if err != nil {
		return err
	}
	self := listed(t, members)
	if self == nil || len(members) == 1 {
		return nil
	}
	if err := canDoWithout(ctx, t, members); err != nil {
		return err
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == self.ID }))
	_, err = etcdctl(ctx, t, others, "member", "remove", self.HexID())
	return err
}

// BeforeName is the directory, inside etcd's, that old data goes to.
func BeforeName(r *task.Site) string { return "kkbundle-before-" + r.Now().UTC().Format(etcdTimes) }

// etcdTimes is how times are written in names of files.
const etcdTimes = "20060102T150405Z"
