package installer

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
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// etcdPatience is how long members may take to find each other and a leader.
	etcdPatience = 3 * time.Minute
	// promotePatience is how long a new member may take to have all data: etcd's own limit of 8 GiB at 30 MB/s.
	promotePatience = 5 * time.Minute
)

// An etcdMember is a member as etcd lists it.
type etcdMember struct {
	ID         uint64   `json:"ID"`
	Name       string   `json:"name"` // "" if it was never started
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"isLearner"`
}

func (m etcdMember) hexID() string { return strconv.FormatUint(m.ID, 16) }

// An EtcdQuorumError says that etcd cannot be worked on without losing what it holds.
type EtcdQuorumError struct{ Host, Reason string }

// Error names the host and the reason.
func (e *EtcdQuorumError) Error() string { return "etcd on " + e.Host + ": " + e.Reason }

// Hint says what to do about it.
func (e *EtcdQuorumError) Hint() string {
	return "start the members that are down (systemctl start etcd on their hosts) and run again; if more than half are lost for good, kkbundle etcd restore makes a new etcd of a backup"
}

// etcdctlTo is etcdctl with what it needs to reach some endpoints.
func (t *Target) etcdctlTo(endpoints ...string) []string {
	files := t.etcdClientFiles()
	return []string{"etcdctl", "--endpoints=" + strings.Join(endpoints, ","), "--cacert=" + files.ca, "--cert=" + files.cert, "--key=" + files.key}
}

// etcdClientFiles are what clients of etcd on the host show.
func (t *Target) etcdClientFiles() clientFiles {
	if t.run.cluster.Etcd.Type == manifest.EtcdInternal {
		return stackedClientFiles()
	}
	return etcdClientFiles()
}

// etcdctl runs etcdctl on the host against some endpoints, and returns what it prints.
func (t *Target) etcdctl(ctx context.Context, endpoints []string, args ...string) ([]byte, error) {
	return t.output(ctx, slices.Concat(t.etcdctlTo(endpoints...), []string{"--dial-timeout=3s", "--command-timeout=10s"}, args)...)
}

// etcdHealthy is nil if the host's member answers and has a leader and a quorum.
func (t *Target) etcdHealthy(ctx context.Context) error {
	return t.etcdHealthyAt(ctx, t.etcdEndpoint())
}

func (t *Target) etcdHealthyAt(ctx context.Context, endpoint string) error {
	_, err := t.etcdctl(ctx, []string{endpoint}, "endpoint", "health")
	return err
}

// etcdMembers lists the members, as a quorum of them agrees.
func (t *Target) etcdMembers(ctx context.Context, endpoints ...string) ([]etcdMember, error) {
	out, err := t.etcdctl(ctx, endpoints, "member", "list", "--write-out=json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Members []etcdMember `json:"members"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("members of etcd, from %s: %w", t.Name, err)
	}
	return list.Members, nil
}

// etcdFormed tells whether there has been a working cluster of etcd on the hosts.
func (r *Site) etcdFormed(ctx context.Context) (bool, error) {
	connected := r.connected(manifest.RoleEtcd)
	for _, t := range connected {
		if there, err := t.test(ctx, "test", "-e", etcdMemberPath); err != nil || there {
			return there, err
		}
	}
	if len(connected) == len(r.withRole(manifest.RoleEtcd)) {
		return false, nil
	}
	// Hosts that were left out may have one.
	if _, err := connected[0].etcdMembers(ctx, r.etcdEndpoints()...); err != nil {
		return false, fmt.Errorf("whether there is an etcd already is not known: hosts of it are left out of this run, and none answers: %w", err)
	}
	return true, nil
}

// runMember starts the host's member, or restarts it with new settings, or makes it one.
func (t *Target) runMember(ctx context.Context) error {
	if err := t.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	formed, err := t.run.etcdFormed(ctx)
	if err != nil {
		return err
	}
	data, err := t.hasEtcdData(ctx)
	if err != nil {
		return err
	}
	members, unknown := t.askEtcd(ctx, formed)
	listed := t.listed(members)
	switch {
	case !formed && (listed != nil || unknown != nil):
		err = t.formEtcd(ctx)
	case unknown != nil && !data:
		return &EtcdQuorumError{t.Name, "it has no data, and the other members do not answer: " + unknown.Error()}
	case unknown != nil:
		err = t.startEtcd(ctx) // a start harms nobody, and may be what the others wait for
	case data && listed != nil && listed.Name != "":
		err = t.restartEtcd(ctx, members)
	default:
		err = t.joinEtcd(ctx, members)
	}
	if err != nil {
		return t.withUnitLog(ctx, etcdUnit, err)
	}
	return t.systemctl(ctx, "enable", etcdUnit)
}

// askEtcd lists the members. As long as no member runs, nobody has to be waited for.
func (t *Target) askEtcd(ctx context.Context, formed bool) ([]etcdMember, error) {
	if formed {
		return t.etcdMembers(ctx, t.run.etcdEndpoints()...)
	}
	for _, other := range t.run.connected(manifest.RoleEtcd) {
		if active, err := other.test(ctx, "systemctl", "is-active", "--quiet", etcdUnit); err != nil {
			return nil, err
		} else if active {
			return t.etcdMembers(ctx, t.run.etcdEndpoints()...)
		}
	}
	return nil, errors.New("no member runs")
}

// listed finds the host among members.
func (t *Target) listed(members []etcdMember) *etcdMember {
	for i, m := range members {
		if slices.Contains(m.PeerURLs, t.etcdPeerURL()) || m.Name == t.Name {
			return &members[i]
		}
	}
	return nil
}

func (t *Target) hasEtcdData(ctx context.Context) (bool, error) {
	dir, err := t.etcdData()
	if err != nil {
		return false, err
	}
	return t.test(ctx, "test", "-d", path.Join(dir, "member"))
}

// startEtcd starts the unit and does not wait: a member is ready when it has found the others.
func (t *Target) startEtcd(ctx context.Context) error {
	return t.systemctl(ctx, "restart", "--no-block", etcdUnit)
}

// formEtcd starts one of the first members, all of which know each other from the inventory.
func (t *Target) formEtcd(ctx context.Context) error {
	var initial []string
	for _, m := range t.run.withRole(manifest.RoleEtcd) {
		initial = append(initial, m.Name+"="+m.etcdPeerURL())
	}
	if err := t.writeInitial(ctx, "new", initial); err != nil {
		return err
	}
	return t.startEtcd(ctx)
}

func (t *Target) writeInitial(ctx context.Context, state string, initial []string) error {
	text := hostfile.Author + ". It counts as long as the data directory is empty.\n" + environment(
		"ETCD_INITIAL_CLUSTER", strings.Join(initial, ","),
		"ETCD_INITIAL_CLUSTER_STATE", state,
		"ETCD_INITIAL_CLUSTER_TOKEN", t.run.cluster.Metadata.Name,
	)
	return t.write(ctx, textFile{etcdInitial, 0o600, []byte(text)})
}

// restartEtcd restarts a member if the others do without it, and waits until it is back.
func (t *Target) restartEtcd(ctx context.Context, members []etcdMember) error {
	if err := t.canDoWithout(ctx, members); err != nil {
		return err
	}
	if err := t.startEtcd(ctx); err != nil {
		return err
	}
	if t.listed(members).Learner { // an earlier run was interrupted before it was a full member
		return t.promoteEtcd(ctx, members)
	}
	return eventually(ctx, etcdPatience, t.etcdHealthy)
}

// canDoWithout refuses to stop a member that works where the others alone are too few. A cluster of one member has no others:
// it pauses.
func (t *Target) canDoWithout(ctx context.Context, members []etcdMember) error {
	voters := slices.DeleteFunc(slices.Clone(members), func(m etcdMember) bool { return m.Learner })
	self := t.listed(voters)
	if self == nil || len(voters) == 1 {
		return nil
	}
	if works, err := succeeded(t.etcdHealthy(ctx)); err != nil || !works {
		return err
	}
	others := 0
	for _, m := range voters {
		if m.ID == self.ID || len(m.ClientURLs) == 0 {
			continue
		}
		works, err := succeeded(t.etcdHealthyAt(ctx, m.ClientURLs[0]))
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
func (t *Target) joinEtcd(ctx context.Context, members []etcdMember) error {
	if err := t.systemctl(ctx, "stop", etcdUnit); err != nil {
		if there, _ := t.test(ctx, "systemctl", "is-active", "--quiet", etcdUnit); there {
			return err
		}
	}
	members, err := t.forgetLost(ctx, members)
	if err != nil {
		return err
	}
	if err := t.setEtcdDataAside(ctx); err != nil {
		return err
	}
	if t.listed(members) == nil {
		others := endpointsOf(members)
		if _, err := t.etcdctl(ctx, others, "member", "add", t.Name, "--peer-urls="+t.etcdPeerURL(), "--learner"); err != nil {
			return err
		}
		if members, err = t.etcdMembers(ctx, others...); err != nil {
			return err
		}
	}
	initial := []string{t.Name + "=" + t.etcdPeerURL()}
	for _, m := range members {
		if m.Name != "" {
			for _, url := range m.PeerURLs {
				initial = append(initial, m.Name+"="+url)
			}
		}
	}
	if err := t.writeInitial(ctx, "existing", initial); err != nil {
		return err
	}
	if err := t.startEtcd(ctx); err != nil {
		return err
	}
	return t.promoteEtcd(ctx, members)
}

// endpointsOf are the addresses of members that were started.
func endpointsOf(members []etcdMember) []string {
	var list []string
	for _, m := range members {
		list = append(list, m.ClientURLs...)
	}
	return list
}

// forgetLost removes the member that this host was before it lost its data, and members that do not answer and are no host of
// the inventory. It returns those that are left.
func (t *Target) forgetLost(ctx context.Context, members []etcdMember) ([]etcdMember, error) {
	var left []etcdMember
	self := t.listed(members)
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m etcdMember) bool { return self != nil && m.ID == self.ID }))
	for _, m := range members {
		lost := self != nil && m.ID == self.ID && m.Name != ""
		if !lost && !slices.ContainsFunc(t.run.withRole(manifest.RoleEtcd), func(h *Target) bool { return h.listed([]etcdMember{m}) != nil }) {
			works := false
			if len(m.ClientURLs) > 0 {
				var err error
				if works, err = succeeded(t.etcdHealthyAt(ctx, m.ClientURLs[0])); err != nil {
					return nil, err
				}
			}
			lost = !works
		}
		if !lost {
			left = append(left, m)
			continue
		}
		if _, err := t.etcdctl(ctx, others, "member", "remove", m.hexID()); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// setEtcdDataAside keeps what a host has of an etcd that it is no member of.
func (t *Target) setEtcdDataAside(ctx context.Context) error {
	dir, err := t.etcdData()
	if err != nil {
		return err
	}
	member, aside := path.Join(dir, "member"), path.Join(dir, t.run.beforeName())
	if there, err := t.test(ctx, "test", "-d", member); err != nil || !there {
		return err
	}
	if err := t.command(ctx, "mkdir", "-p", aside); err != nil {
		return err
	}
	return t.command(ctx, "mv", member, aside+"/")
}

// promoteEtcd makes a learner a full member when it has all data.
func (t *Target) promoteEtcd(ctx context.Context, members []etcdMember) error {
	self := t.listed(members)
	if self == nil {
		return fmt.Errorf("%s was added to etcd, and is not among its members", t.Name)
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m etcdMember) bool { return m.ID == self.ID }))
	if len(others) == 0 {
		return errors.New("etcd has no member but the new one")
	}
	if !self.Learner {
		return eventually(ctx, etcdPatience, t.etcdHealthy)
	}
	return eventually(ctx, promotePatience, func(ctx context.Context) error {
		_, err := t.etcdctl(ctx, others, "member", "promote", self.hexID())
		return err
	})
}

// leaveEtcd takes the host out of etcd before Reset takes etcd off it. Where everything goes, nobody has to be told.
func (t *Target) leaveEtcd(ctx context.Context) error {
	if t.run.scope.Whole() {
		return nil
	}
	active, err := t.test(ctx, "systemctl", "is-active", "--quiet", etcdUnit)
	if err != nil || !active {
		return err
	}
	members, err := t.etcdMembers(ctx, t.etcdEndpoint())
	if err != nil {
		return err
	}
	self := t.listed(members)
	if self == nil || len(members) == 1 {
		return nil
	}
	if err := t.canDoWithout(ctx, members); err != nil {
		return err
	}
	others := endpointsOf(slices.DeleteFunc(slices.Clone(members), func(m etcdMember) bool { return m.ID == self.ID }))
	_, err = t.etcdctl(ctx, others, "member", "remove", self.hexID())
	return err
}

// beforeName is the directory, inside etcd's, that old data goes to.
func (r *Site) beforeName() string { return "kkbundle-before-" + r.Now().UTC().Format(etcdTimes) }

// etcdTimes is how times are written in names of files.
const etcdTimes = "20060102T150405Z"
