package installer

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

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	joinProofPath = stampDir + "/join-proof"
	signWait      = 30 * time.Second // kube-controller-manager signs for a token when it sees it
)

// joinProofTask proves that a join line works, as kubeadm's discovery uses it: what the cluster says of itself is signed with the
// token, the endpoint has a certificate of the authority whose hash is in the line, and the token is let in. It makes a token
// for that moment, once for a cluster and an endpoint.
func joinProofTask() Task {
	return Task{
		Name:  "verify-join",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err // a dry run gets here before there is a cluster
			}
			stamp, err := t.joinProof(ctx)
			if err != nil {
				return false, err
			}
			return t.has(ctx, stamp)
		},
		Do: func(ctx context.Context, t *Target) error {
			stamp, err := t.joinProof(ctx)
			if err != nil {
				return err
			}
			if err := t.proveJoin(ctx, newToken()); err != nil {
				return err
			}
			return t.write(ctx, stamp)
		},
	}
}

// joinProof says for which cluster and endpoint joining was proven.
func (t *Target) joinProof(ctx context.Context) (textFile, error) {
	pin, err := t.clusterPin(ctx)
	return textFile{joinProofPath, 0o600, []byte(t.run.endpoint() + " " + pin + "\n")}, err
}

func (t *Target) proveJoin(ctx context.Context, token string) (err error) {
	t.run.mask.hide(token)
	if err := t.allow(ctx, joining{name: "verification", token: token}); err != nil {
		return err
	}
	id, _, _ := strings.Cut(token, ".")
	defer func() {
		_, forget := t.kubectl(context.WithoutCancel(ctx), "delete", "secret", "--namespace="+kubeSystem, "--ignore-not-found", "bootstrap-token-"+id)
		err = errors.Join(err, forget)
	}()
	ca, err := t.read(ctx, clusterCA)
	if err != nil {
		return err
	}
	from := t // a worker, where there is one: that is who joins
	if workers := t.run.connected(manifest.RoleWorker); len(workers) > 0 {
		from = workers[len(workers)-1]
	}
	ask := func(ctx context.Context, name, as string) (map[string]string, error) {
		return from.configMap(ctx, ca, name, as)
	}
	if err := eventually(ctx, signWait, func(ctx context.Context) error {
		info, err := ask(ctx, kubePublic+"/configmaps/cluster-info", "")
		if err != nil {
			return err
		}
		return signedBy(token, info)
	}); err != nil {
		return err
	}
	_, err = ask(ctx, kubeSystem+"/configmaps/kubeadm-config", token)
	return err
}

// configMap gets a ConfigMap's data from the cluster's endpoint over a connection that the host makes, as whoever has the
// token, or as nobody.
func (t *Target) configMap(ctx context.Context, ca []byte, name, token string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	transport, err := t.transport(ca)
	if err != nil {
		return nil, err
	}
	defer transport.CloseIdleConnections()
	url := "https://" + t.run.endpoint() + "/api/v1/namespaces/" + name
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
		return errors.New("cluster-info is not signed for the token; kube-controller-manager signs it")
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, header+"."+base64.RawURLEncoding.EncodeToString([]byte(info["kubeconfig"])))
	given, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(given, mac.Sum(nil)) {
		return errors.New("cluster-info's signature for the token is not right")
	}
	return nil
}
