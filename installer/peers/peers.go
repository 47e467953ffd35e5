package peers

import (
	"context"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

// Spegel is its name in the catalog, and that of its release.
const Spegel = "spegel"

const (
	// Secret has the login, in the namespace of the pods.
	Secret = "spegel-login"
	// LoginFile has its password, in the work directory. It goes over the nodes' network without TLS, as layers do, so
	// it is not the registry's.
	LoginFile = "registry/peers-password"
	user      = "kkbundle"
)

// Login returns the login at peers, which the work directory keeps. Hosts ask for it at the same time.
func Login(s *task.Site) (task.Login, error) {
	s.Dir.Making.Lock()
	defer s.Dir.Making.Unlock()
	password, err := s.Dir.Secret(LoginFile)
	s.Mask.Hide(password)
	s.Mask.Hide(user + ":" + password)
	return task.Login{Username: user, Password: password}, err
}

// Mirrors returns where containerd of a node asks its peers; nowhere in a cluster without them.
func Mirrors(t *task.Host) ([]mirror.Peer, error) {
	if !t.Site.Cluster.ImageDistribution.Peers.Used() {
		return nil, nil
	}
	l, err := Login(t.Site)
	if err != nil {
		return nil, err
	}
	var list []mirror.Peer
	for _, port := range []int{manifest.PeersHostPort, manifest.PeersNodePort} {
		list = append(list, mirror.Peer{
			URL: "http://" + net.JoinHostPort(t.IP.String(), strconv.Itoa(port)), Username: l.Username, Password: l.Password,
		})
	}
	return list, nil
}

// LoginTask gives the pods their login, before their chart is installed.
func LoginTask() task.Task {
	return task.Task{
		Name:  Secret,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			want, err := Login(t.Site)
			if err != nil {
				return false, err
			}
			var list corev1.SecretList
			err = t.Kube().Get(ctx, &list, "secrets", "--namespace="+kube.SystemNamespace,
				"--field-selector=metadata.name="+Secret)
			if err != nil || len(list.Items) == 0 {
				return false, err
			}
			have := list.Items[0].Data
			return string(have["username"]) == want.Username && string(have["password"]) == want.Password, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			want, err := Login(t.Site)
			if err != nil {
				return err
			}
			data, err := kube.YAML(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: Secret, Namespace: kube.SystemNamespace},
				Data:       map[string][]byte{"username": []byte(want.Username), "password": []byte(want.Password)},
			})
			if err != nil {
				return err
			}
			return t.Kube().Apply(ctx, data, kube.Apply{Manager: task.FieldManager, Force: true})
		},
	}
}
