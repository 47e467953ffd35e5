package kubeadm

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const signWait = 30 * time.Second // kube-controller-manager signs for a token when it sees it

// JoinProofTask checks that nodes can join, in the steps of kubeadm's discovery: cluster-info is signed with the token,
// the endpoint's certificate is from the pinned authority, and the API server accepts the token. It uses a short-lived
// token, once per cluster and endpoint.
func JoinProofTask() task.Task {
	step := onceFor("verify-join", joinProof, func(ctx context.Context,
		t *task.Host,
	) error {
		return tryJoin(ctx, t, newToken())
	})
	proven := step.Done
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		if member, err := member.IsMember(ctx, t); err != nil || !member {
			return false, err // a dry run gets here before there is a cluster
		}
		return proven(ctx, t)
	}
	return step
}

// onceFor returns a task of the first control plane that runs do unless its stamp file exists with this content.
func onceFor(name string, stampFile func(ctx context.Context, t *task.Host) (task.File, error),
	do func(ctx context.Context, t *task.Host) error,
) task.Task {
	return task.Task{
		Name:  name,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			stamp, err := stampFile(ctx, t)
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, stamp)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			stamp, err := stampFile(ctx, t)
			if err != nil {
				return err
			}
			if err := do(ctx, t); err != nil {
				return err
			}
			return t.Write(ctx, stamp)
		},
	}
}

// joinProof returns the stamp file of a checked endpoint and cluster.
func joinProof(ctx context.Context, t *task.Host) (task.File, error) {
	pin, err := member.ClusterPin(ctx, t)
	return marks.JoinProof.File([]byte(t.Site.Endpoint() + " " + pin + "\n")), err
}

func tryJoin(ctx context.Context, t *task.Host, token string) (err error) {
	t.Site.Mask.Hide(token)
	if err := createToken(ctx, t, Node{name: "verification", token: token}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteToken(ctx, t, token)) }()
	ca, err := t.Read(ctx, kube.ClusterCA)
	if err != nil {
		return err
	}
	from := t // a worker if there is one: most joining nodes are workers
	if workers := t.Site.Connected(manifest.RoleWorker); len(workers) > 0 {
		from = workers[len(workers)-1]
	}
	ask := func(ctx context.Context, name, as string) (map[string]string, error) {
		return configMap(ctx, from, ca, name, as)
	}
	if err := task.Eventually(ctx, signWait, func(ctx context.Context) error {
		info, err := ask(ctx, kube.PublicNamespace+"/configmaps/cluster-info", "")
		if err != nil {
			return err
		}
		return signedBy(token, info)
	}); err != nil {
		return err
	}
	_, err = ask(ctx, kube.SystemNamespace+"/configmaps/kubeadm-config", token)
	return err
}

// configMap gets a ConfigMap's data from the cluster's endpoint through the host, anonymously if token is "".
func configMap(ctx context.Context, t *task.Host, ca []byte, name, token string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	transport, err := t.Transport(ca)
	if err != nil {
		return nil, err
	}
	defer transport.CloseIdleConnections()
	url := "https://" + t.Site.Endpoint() + "/api/v1/namespaces/" + name
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", t.Name, err)
	}
	defer answer.Body.Close()
	const most = 1 << 20
	var object struct {
		Data    map[string]string `json:"data"`
		Message string            `json:"message"` // of an error
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&object)
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("from %s: %s: %s %s", t.Name, url, answer.Status, object.Message)
	}
	return object.Data, err
}

// signedBy checks the detached signature (JWS, HS256) that the cluster makes for each token.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#configmap-signing
func signedBy(token string, info map[string]string) error {
	id, secret, _ := strings.Cut(token, ".")
	header, signature, ok := strings.Cut(info["jws-kubeconfig-"+id], "..")
	if !ok {
		return errors.New("cluster-info has no signature for the token; check kube-controller-manager, which signs it")
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, header+"."+base64.RawURLEncoding.EncodeToString([]byte(info["kubeconfig"])))
	given, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(given, mac.Sum(nil)) {
		return errors.New("cluster-info has a wrong signature for the token")
	}
	return nil
}
