// Command manager is kkbundle's infrastructure provider for Cluster API.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2/textlogger"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
	"github.com/kkbundle/kkbundle/provider/internal/inplace"
	"github.com/kkbundle/kkbundle/provider/internal/webhooks"
)

type options struct {
	namespace, health, metrics, certs string
	program, bundles, scratch         string
	port, hosts, extension            int
	extensionService, extensionSecret string
	elect                             bool
	timing                            controllers.Timing
	log                               *textlogger.Config
}

func parse(args []string) (options, error) {
	o := options{timing: controllers.DefaultTiming()}
	fs := flag.NewFlagSet("manager", flag.ContinueOnError)
	fs.StringVar(&o.namespace, "namespace", "", "namespace of the objects to reconcile; empty for all")
	fs.StringVar(&o.health, "health-addr", ":9440", "address of the probes")
	fs.StringVar(&o.metrics, "metrics-addr", "0", "address of the metrics, 0 for none")
	fs.IntVar(&o.port, "webhook-port", 9443, "port of the webhooks, 0 for none")
	fs.StringVar(&o.certs, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs", "directory with the webhooks' tls.crt and tls.key")
	fs.IntVar(&o.extension, "extension-port", 9444, "port of the Runtime Extension for upgrades in place, 0 for none; its certificate is that of the webhooks")
	fs.StringVar(&o.extensionService, "extension-service", "", "Service of the Runtime Extension, NAMESPACE/NAME, with the port of --extension-port, to be made known to Cluster API; empty if somebody else does that")
	fs.StringVar(&o.extensionSecret, "extension-secret", "", "Secret in that namespace with the certificate's authority")
	fs.BoolVar(&o.elect, "leader-elect", false, "elect a leader, so that one of several managers is at work")
	fs.StringVar(&o.program, "kkbundle", "/usr/local/bin/kkbundle", "the program kkbundle")
	fs.StringVar(&o.bundles, "bundles", "/var/lib/kkbundle-provider", "directory of bundles: those pulled, and in its directory site those named file:///")
	fs.StringVar(&o.scratch, "scratch", filepath.Join(os.TempDir(), "kkbundle-provider"), "directory for the files of runs, with their secrets; better in memory")
	fs.IntVar(&o.hosts, "hosts", 20, "hosts provisioned at a time, and cleaned beside them")
	fs.DurationVar(&o.timing.Run, "run-limit", o.timing.Run, "longest time of one run on a host")
	fs.DurationVar(&o.timing.Pull, "pull-limit", o.timing.Pull, "longest time of the download of a bundle")
	fs.DurationVar(&o.timing.Quarantine, "quarantine-after", o.timing.Quarantine, "time after which a host that cannot be cleaned is given up")
	ctrlconfig.RegisterFlags(fs) // --kubeconfig
	o.log = textlogger.NewConfig()
	o.log.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.hosts < 1 {
		return o, fmt.Errorf("--hosts %d: want 1 or more", o.hosts)
	}
	if namespace, name, ok := strings.Cut(o.extensionService, "/"); o.extensionService != "" && (!ok || namespace == "" || name == "" || o.extensionSecret == "") {
		return o, fmt.Errorf("--extension-service %s: want NAMESPACE/NAME, and --extension-secret", o.extensionService)
	}
	return o, nil
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctrl.SetLogger(textlogger.NewLogger(o.log))
		err = run(ctrl.SetupSignalHandler(), o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "manager: %s\n", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, o options) error {
	home, err := prepare(o)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, runtimev1.AddToScheme,
		infrav1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := manager.Options{
		Scheme: scheme, Client: controllers.ClientOptions(), HealthProbeBindAddress: o.health,
		Metrics:        metricsserver.Options{BindAddress: o.metrics},
		LeaderElection: o.elect, LeaderElectionID: "kkbundle-provider", LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout: durationPointer(time.Minute),
	}
	if o.namespace != "" {
		config.Cache.DefaultNamespaces = map[string]cache.Config{o.namespace: {}}
	}
	if o.port > 0 {
		config.WebhookServer = webhook.NewServer(webhook.Options{
			Port: o.port, CertDir: o.certs,
			TLSOpts: modern(),
		})
	}
	kubeconfig, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(kubeconfig, config)
	if err != nil {
		return err
	}
	operator := &hosts.Operator{
		Runner: &hosts.Program{Path: o.program, Environment: hosts.Environment(home)},
		Dir:    o.scratch, Bundles: o.bundles,
	}
	nodes := controllers.WorkloadNodes{Client: mgr.GetClient()}
	c := controllers.Controllers{
		Operator: operator, Nodes: nodes, Updater: nodes,
		Timing: o.timing, Places: o.hosts,
	}
	if err := c.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: 10}); err != nil {
		return err
	}
	if o.port > 0 {
		// Whoever this manager is, it alone frees hosts.
		var self authenticationv1.SelfSubjectReview
		if err := mgr.GetClient().Create(ctx, &self); err != nil {
			return fmt.Errorf("the name of this manager at the API server: %w", err)
		}
		if err := webhooks.Setup(mgr, self.Status.UserInfo.Username); err != nil {
			return err
		}
	}
	if err := extend(mgr, o); err != nil {
		return err
	}
	ready := healthz.Ping
	if o.port > 0 {
		ready = mgr.GetWebhookServer().StartedChecker()
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("webhooks", ready)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func modern() []func(*tls.Config) {
	return []func(*tls.Config){func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 }}
}

// extend adds the Runtime Extension for upgrades in place.
func extend(mgr manager.Manager, o options) error {
	if o.extension == 0 || o.port == 0 { // the certificate is that of the webhooks
		return nil
	}
	e := &inplace.Extension{Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	s, err := e.Server(server.Options{Port: o.extension, CertDir: o.certs, TLSOpts: modern()})
	if err != nil {
		return err
	}
	if err := mgr.Add(s); err != nil {
		return err
	}
	namespace, name, ok := strings.Cut(o.extensionService, "/")
	if !ok {
		return nil
	}
	port := int32(o.extension) //nolint:gosec // a port
	return mgr.Add(&inplace.Registration{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Pause: time.Minute, Secret: o.extensionSecret,
		Service: runtimev1.ServiceReference{Namespace: namespace, Name: name, Port: &port},
	})
}

// prepare makes the directories, and removes files that a killed manager left: they have secrets. It returns the home
// of kkbundle's runs.
func prepare(o options) (home string, err error) {
	if err := os.RemoveAll(o.scratch); err != nil {
		return "", err
	}
	home = filepath.Join(o.bundles, "home")
	for _, dir := range []string{o.scratch, o.bundles, filepath.Join(o.bundles, hosts.SiteDir), home} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	return home, nil
}

func durationPointer(d time.Duration) *time.Duration { return &d }
