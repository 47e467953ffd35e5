package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// Bounds of a host's first connection to a Service, and of later ones after each has doubled. A packet that came
// before the Service's rules is lost, and its connection with it; a slow host needs seconds to begin one.
const (
	firstConnect = 2 * time.Second
	connectTime  = 5 * time.Second
)

// ServicesFollow waits until the Services of hosts follow the API server. A client that lost it tries again after up
// to a minute (defaultBackoffMax and its jitter in
// https://github.com/kubernetes/client-go/blob/v0.37.0/tools/cache/reflector.go), and until then kube-proxy sends
// connections to pods that are gone. The proof is a new Service of the API servers' pods: the controller manager
// gives it endpoints, and each host connects to its address. It is the same without kube-proxy, and needs no pod
// network. hosts returns the hosts to ask, and is called before each try. A host that cannot be asked is left out.
func ServicesFollow(ctx context.Context, lead *task.Host, most time.Duration,
	hosts func(context.Context) ([]*task.Host, error),
) error {
	p := serviceProof{lead: lead, patience: firstConnect, reached: map[string]bool{}}
	err := task.Eventually(ctx, most, func(ctx context.Context) error {
		list, err := hosts(ctx)
		if err != nil || len(list) == 0 {
			return err
		}
		return p.try(ctx, list)
	})
	if !p.begun {
		return err
	}
	gone := task.Eventually(context.WithoutCancel(ctx), settleWait,
		func(ctx context.Context) error { return deleteProof(ctx, lead) })
	return errors.Join(err, gone)
}

// A serviceProof is a Service on its way to the hosts.
type serviceProof struct {
	lead          *task.Host
	begun         bool            // there may be a Service
	name, address string          // "" before its address is known
	served        bool            // it has an endpoint
	patience      time.Duration   // with a connection
	reached       map[string]bool // by the hosts' names
}

// try continues the proof: it creates the Service, looks for its endpoint, and connects the hosts that have not
// reached it.
func (p *serviceProof) try(ctx context.Context, hosts []*task.Host) error {
	if p.begun = true; p.name == "" {
		if err := p.create(ctx); err != nil {
			return err
		}
	}
	if !p.served {
		if err := p.hasEndpoint(ctx); err != nil {
			return err
		}
		p.served = true
	}
	todo := slices.DeleteFunc(slices.Clone(hosts), func(t *task.Host) bool { return p.reached[t.Name] })
	reached := make([]bool, len(todo))
	err := p.lead.Site.OnAll(todo, func(i int, t *task.Host) error {
		err := p.connect(ctx, t)
		if errors.As(err, new(*host.UnreachableError)) {
			return nil
		}
		reached[i] = err == nil
		return err
	})
	for i, t := range todo {
		p.reached[t.Name] = reached[i]
	}
	p.patience = min(2*p.patience, connectTime)
	return err
}

// serviceObject returns the Service of the proof. Its endpoints do not depend on the API servers' readiness, which
// their kubelets report: an upgrade may have stopped with a kubelet that does not run.
func serviceObject(port int32) *corev1.Service {
	meta := proofMeta("services")
	meta.Name, meta.GenerateName = "", "kkbundle-verify-"
	return &corev1.Service{
		ObjectMeta: meta,
		Spec: corev1.ServiceSpec{
			// kubeadm's labels
			Selector: map[string]string{"component": "kube-apiserver", "tier": "control-plane"},
			Ports: []corev1.ServicePort{{
				Name: "https", Protocol: corev1.ProtocolTCP, Port: port,
				TargetPort: intstr.FromInt32(manifest.DefaultPort),
			}},
			PublishNotReadyAddresses: true,
		},
	}
}

// create makes the Service. Its port is one by chance: an address may have been that of an earlier Service, whose
// rules a host still has.
func (p *serviceProof) create(ctx context.Context) error {
	const lowest, ports = int32(10000), int32(20000)
	data, err := kube.YAML(serviceObject(lowest + rand.N(ports)))
	if err != nil {
		return err
	}
	out, err := p.lead.Kube().Kubectl(ctx, kube.Command{
		Args:  []string{"create", "--filename=-", "--output=json"},
		Stdin: data, Quiet: true,
	})
	if err != nil {
		return err
	}
	var made corev1.Service
	if err := capped.JSON(out, capped.MaxValues, &made); err != nil {
		return fmt.Errorf("output of kubectl create: %w", err)
	}
	if len(made.Spec.Ports) != 1 || net.ParseIP(made.Spec.ClusterIP) == nil {
		return fmt.Errorf("the new Service %s/%s has the address %q and %d ports", made.Namespace, made.Name,
			made.Spec.ClusterIP, len(made.Spec.Ports))
	}
	p.name, p.address = made.Name, net.JoinHostPort(made.Spec.ClusterIP, strconv.Itoa(int(made.Spec.Ports[0].Port)))
	return nil
}

// hasEndpoint checks that the controller manager works.
func (p *serviceProof) hasEndpoint(ctx context.Context) error {
	var list discoveryv1.EndpointSliceList
	selector := "--selector=" + discoveryv1.LabelServiceName + "=" + p.name
	if err := p.lead.Kube().Get(ctx, &list, "endpointslices", "--namespace="+kube.SystemNamespace,
		selector); err != nil {
		return err
	}
	for _, s := range list.Items {
		if slices.ContainsFunc(s.Endpoints,
			func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }) {
			return nil
		}
	}
	return fmt.Errorf("the new Service %s/%s has no endpoint yet, which the controller manager makes of the API servers' pods", kube.SystemNamespace, p.name)
}

// connect connects a host to the Service.
func (p *serviceProof) connect(ctx context.Context, t *task.Host) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	c, err := t.Dial(ctx, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("%s does not reach the new Service %s/%s at its address %s: %w", t.Name, kube.SystemNamespace,
			p.name, p.address, err)
	}
	_ = c.Close() // it has proved all that it can
	return nil
}
