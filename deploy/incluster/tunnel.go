package incluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/kkbundle/kkbundle/deploy/incluster/inpod"
	"github.com/kkbundle/kkbundle/installer/kube"
)

// A Tunnel is a local address that leads to the registry through the API server.
type Tunnel struct {
	// Address is the HOST:PORT to push to, on the loopback address.
	Address string
	// TLS accepts the registry's certificate alone. While a lost connection is made again, another process of this
	// machine can take the port: it gets no password. nil means plain HTTP, to an earlier release's registry that
	// Find returned.
	TLS *tls.Config
	end func()
}

// Close ends the tunnel and its connections.
func (t *Tunnel) Close() { t.end() }

// Open opens a tunnel to the registry's pod, by the API server's port-forward. A lost connection is made again under
// the same address, to the pod of that time: only the requests of that moment fail.
func (r *Registry) Open(ctx context.Context) (*Tunnel, error) {
	ctx, cancel := context.WithCancel(ctx)
	lost := make(chan error, 1)
	port, err := r.work.forward(ctx, 0, lost)
	if err != nil {
		cancel()
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			err := <-lost
			for ctx.Err() == nil && err != nil {
				r.work.Logger.Info("connection to the registry's pod lost; connecting again", "error", err)
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
					_, err = r.work.forward(ctx, port, lost)
				}
			}
			if ctx.Err() != nil {
				return
			}
		}
	})
	return &Tunnel{
		Address: "127.0.0.1:" + strconv.Itoa(int(port)), TLS: r.clientTLS(), end: func() { cancel(); running.Wait() },
	}, nil
}

func (r *Registry) clientTLS() *tls.Config {
	if r.authority == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.authority) // an unreadable one accepts no certificate
	return &tls.Config{RootCAs: roots, ServerName: inpod.ServerName, MinVersion: tls.VersionTLS13}
}

// errLost means that the connection to the pod ended without an error.
var errLost = errors.New("lost connection to the pod")

// forward listens on a local port, 0 for any, and returns when it forwards. lost receives the end.
func (w *work) forward(ctx context.Context, local uint16, lost chan<- error) (uint16, error) {
	pod, err := w.readyPod(ctx)
	if err != nil {
		return 0, err
	}
	url := w.typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(w.Namespace).Name(pod).SubResource(
		"portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(w.Config)
	if err != nil {
		return 0, err
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, w.Config)
	if err != nil {
		return 0, err
	}
	dialer := portforward.NewFallbackDialerForStreaming(websocket,
		spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
	ready, ended := make(chan struct{}), make(chan error, 1)
	ports := []string{fmt.Sprintf("%d:%d", local, pushPort)}
	f, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{"127.0.0.1"}, ports, ready,
		io.Discard, io.Discard)
	if err != nil {
		return 0, err
	}
	go func() { ended <- f.ForwardPorts() }()
	select {
	case err := <-ended:
		return 0, fmt.Errorf("port-forward to pod %s: %w", pod, orLost(err))
	case <-ready:
	}
	go func() { lost <- orLost(<-ended) }()
	got, err := f.GetPorts()
	if err != nil || len(got) == 0 {
		return 0, errors.Join(err, errLost)
	}
	return got[0].Local, nil
}

func orLost(err error) error {
	if err == nil {
		return errLost
	}
	return err
}

// readyPod returns the name of the registry's pod.
func (w *work) readyPod(ctx context.Context) (string, error) {
	pods, err := w.typed.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: componentLabel +
		"=registry"})
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(pods.Items,
		func(p corev1.Pod) bool { return kube.IsPodReady(&p) && p.DeletionTimestamp == nil })
	if i < 0 {
		return "", errors.New("the registry has no ready pod")
	}
	return pods.Items[i].Name, nil
}
