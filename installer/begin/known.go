package begin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// input returns the input of checks except the hosts. In a precheck, missing items of the bundle are part of the
// report; in an installation they are an error.
func input(ctx context.Context, r *engine.Run) (precheck.Input, error) {
	var missing []string
	err := CheckBundle(ctx, r)
	if err != nil && r.Operation.Visits {
		missing, err = sentences(err), nil
	}
	programs, unread := bundledPrograms(ctx, r)
	lacking, unknown := lackingImages(ctx, r)
	return precheck.Input{
		Programs: programs,
		Cluster:  r.Cluster, Inventory: r.Options.Inventory, Install: r.Bundle != nil,
		Upgrade: r.Rule == task.OtherVersion, Missing: missing,
		Architectures: architectures(r), Packages: r.Distributions(), Unsigned: r.UnsignedDistributions(),
		Answers:    answers(ctx, r),
		Etcd:       providedEtcd(ctx, r),
		PackagesOf: r.Packages.For, Lacking: lacking,
	}, errors.Join(engine.CheckHooks(r.Site), err, unread, unknown)
}

// sentences returns the texts of joined errors.
func sentences(err error) []string {
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	var list []string
	for _, one := range all.Unwrap() {
		list = append(list, sentences(one)...)
	}
	return list
}

// providedEtcd reads the files of a user's etcd and asks it for its version, from this machine. nil: the cluster has
// its own.
func providedEtcd(ctx context.Context, r *engine.Run) *precheck.ProvidedEtcd {
	e := r.Cluster.Etcd
	if e.Type != manifest.EtcdProvided || r.Values == nil {
		return nil
	}
	known := &precheck.ProvidedEtcd{Now: r.Now()}
	var key []byte
	for _, file := range []struct {
		path string
		into *[]byte
	}{{e.CA, &known.CA}, {e.Cert, &known.Cert}, {e.Key, &key}} {
		data, err := r.Values(file.path)
		if err != nil {
			known.Problem = err.Error()
			return known
		}
		*file.into = data
	}
	pair, err := tls.X509KeyPair(known.Cert, key)
	if err != nil {
		known.Problem = fmt.Sprintf("%s with %s: %s", e.Cert, e.Key, err)
		return known
	}
	roots := x509.NewCertPool()
	if roots.AppendCertsFromPEM(known.CA) && r.Options.Recorded == nil {
		known.Versions = etcdVersions(ctx, e, &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots,
			Certificates: []tls.Certificate{pair},
		})
	}
	return known
}

// etcdVersions asks all endpoints at once.
func etcdVersions(ctx context.Context, e manifest.Etcd, config *tls.Config) []precheck.EtcdVersion {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	list := make([]precheck.EtcdVersion, len(e.Endpoints))
	var all sync.WaitGroup
	for i, endpoint := range e.Endpoints {
		all.Go(func() {
			list[i].Endpoint = endpoint
			version, err := etcdVersion(ctx, client, endpoint)
			if list[i].Version = version; err != nil {
				list[i].Problem = err.Error()
			}
		})
	}
	all.Wait()
	return list
}

func etcdVersion(ctx context.Context, client *http.Client, endpoint string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(endpoint, "/")+"/version", nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	var says struct {
		Server string `json:"etcdserver"`
	}
	const most = 64 << 10
	if err := json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&says); err != nil || says.Server == "" {
		return "", fmt.Errorf("the endpoint reports no version (%s)", answer.Status)
	}
	return says.Server, nil
}
