// This is not kube-vip, whose modules cannot be built here without its whole tree: it stands in for its image in the
// lab. It reads the environment that kube-vip's static pod is given (control plane, ARP mode, one address), holds the
// same Lease by the same rules, puts the address on the same interface, announces it, and talks to the same API
// server (https://kubernetes:PORT, with the certificate of /etc/kubernetes/admin.conf). What kube-vip does beyond
// that, it does not do.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

const (
	adminConf  = "/etc/kubernetes/admin.conf"
	microTime  = "2006-01-02T15:04:05.000000Z07:00"
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 || os.Args[1] != "manager" {
		log.Fatal("usage: kube-vip manager")
	}
	e, err := newElection()
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	e.vip.set(false) // what an earlier one left
	tick := time.NewTicker(e.retry)
	for {
		e.step()
		select {
		case <-end:
			e.vip.set(false)
			return
		case <-tick.C:
		}
	}
}

// An election is for one Lease.
type election struct {
	client          *http.Client
	url, node       string
	term            time.Duration // how long a lease holds
	deadline, retry time.Duration
	vip             *vip
	leading         bool
	renewed         time.Time // the last time that this one renewed the lease
	seen            string    // what the lease said last
	since           time.Time // since when it says that
}

func newElection() (*election, error) {
	for name, want := range map[string]string{"cp_enable": "true", "vip_arp": "true", "vip_leaderelection": "true"} {
		if os.Getenv(name) != want {
			return nil, fmt.Errorf("%s is %q: the stand-in knows %s only", name, os.Getenv(name), want)
		}
	}
	e := &election{node: os.Getenv("vip_nodename")}
	for name, to := range map[string]*time.Duration{
		"vip_leaseduration": &e.term, "vip_renewdeadline": &e.deadline,
		"vip_retryperiod": &e.retry,
	} {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: a number of seconds is wanted: %q", name, os.Getenv(name))
		}
		*to = time.Duration(n) * time.Second
	}
	if e.node == "" || os.Getenv("vip_leasename") == "" || os.Getenv("cp_namespace") == "" || os.Getenv("port") == "" {
		return nil, errors.New("vip_nodename, vip_leasename, cp_namespace and port are wanted")
	}
	e.url = "https://kubernetes:" + os.Getenv("port") + leasesPath + os.Getenv("cp_namespace") + "/leases"
	var err error
	if e.vip, err = newVIP(os.Getenv("address"), os.Getenv("vip_interface"), os.Getenv("vip_subnet")); err != nil {
		return nil, err
	}
	e.client, err = newClient()
	return e, err
}

// newClient trusts and is trusted as admin.conf says.
func newClient() (*http.Client, error) {
	conf, err := os.ReadFile(adminConf)
	if err != nil {
		return nil, err
	}
	field := func(name string) []byte {
		found := regexp.MustCompile(name + `: (\S+)`).FindSubmatch(conf)
		if found == nil {
			return nil
		}
		data, _ := base64.StdEncoding.DecodeString(string(found[1]))
		return data
	}
	pair, err := tls.X509KeyPair(field("client-certificate-data"), field("client-key-data"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", adminConf, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(field("certificate-authority-data"))
	return &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}},
	}, nil
}

type lease struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Holder   string `json:"holderIdentity"`
		Duration int    `json:"leaseDurationSeconds"`
		Acquired string `json:"acquireTime,omitempty"`
		Renewed  string `json:"renewTime"`
	} `json:"spec"`
}

// step renews the lease, or takes it if nobody has renewed it for its duration by this machine's clock.
func (e *election) step() {
	held, err := e.try()
	now := time.Now()
	switch {
	case err == nil && held:
		e.renewed = now
	case err != nil:
		log.Print(err)
	}
	leading := now.Sub(e.renewed) < e.deadline && (held || err != nil)
	if leading != e.leading {
		log.Printf("leading: %v", leading)
	}
	e.leading = leading
	e.vip.set(leading)
}

func (e *election) try() (held bool, err error) {
	name := os.Getenv("vip_leasename")
	var l lease
	status, err := e.call(http.MethodGet, e.url+"/"+name, nil, &l)
	if err != nil {
		return false, err
	}
	if status == http.StatusNotFound {
		l = lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: map[string]any{"name": name}}
		e.claim(&l)
		status, err = e.call(http.MethodPost, e.url, l, nil)
		return status == http.StatusCreated, err
	}
	if said := l.Spec.Holder + l.Spec.Renewed; said != e.seen {
		e.seen, e.since = said, time.Now()
	}
	if l.Spec.Holder != e.node && l.Spec.Holder != "" && time.Since(e.since) < e.term {
		return false, nil
	}
	e.claim(&l)
	status, err = e.call(http.MethodPut, e.url+"/"+name, l, nil) // a conflict: another was quicker
	return status == http.StatusOK, err
}

func (e *election) claim(l *lease) {
	now := time.Now().UTC().Format(microTime)
	if l.Spec.Holder != e.node {
		l.Spec.Acquired = now
	}
	l.Spec.Holder, l.Spec.Renewed, l.Spec.Duration = e.node, now, int(e.term/time.Second)
}

// call returns the status of answers that an election has to expect; all others are errors.
func (e *election) call(method, url string, body, into any) (int, error) {
	var data bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&data).Encode(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequest(method, url, &data)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := e.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusCreated:
		if into == nil {
			return res.StatusCode, nil
		}
		return res.StatusCode, json.Unmarshal(text, into)
	case http.StatusNotFound, http.StatusConflict:
		return res.StatusCode, nil
	}
	return 0, fmt.Errorf("%s %s: %s: %s", method, url, res.Status, text)
}

// A vip is an IPv4 address on an interface.
type vip struct {
	address netip.Addr
	bits    int
	link    *net.Interface
}

func newVIP(address, link, subnet string) (*vip, error) {
	a, err := netip.ParseAddr(address)
	if err != nil || !a.Is4() {
		return nil, fmt.Errorf("address %q: the stand-in knows IPv4 only", address)
	}
	bits, err := strconv.Atoi(subnet)
	if err != nil || bits < 1 || bits > 32 {
		return nil, fmt.Errorf("vip_subnet %q: a prefix length is wanted", subnet)
	}
	i, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("vip_interface %q: %w", link, err)
	}
	return &vip{a, bits, i}, nil
}

func (v *vip) set(here bool) {
	has := v.has()
	var err error
	switch {
	case here && !has:
		if err = v.change(syscall.RTM_NEWADDR, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL); err == nil {
			log.Printf("%s is on %s", v.address, v.link.Name)
		}
	case !here && has:
		err = v.change(syscall.RTM_DELADDR, 0)
	}
	if err == nil && here {
		err = v.announce()
	}
	if err != nil {
		log.Print(err)
	}
}

func (v *vip) has() bool {
	list, _ := v.link.Addrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == v.address {
			return true
		}
	}
	return false
}

// change sends one request to the kernel, see rtnetlink(7).
func (v *vip) change(kind, flags uint16) error {
	s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, syscall.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer syscall.Close(s)
	a := v.address.As4()
	var m []byte
	m = binary.NativeEndian.AppendUint32(m, 16+8+2*8)
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|flags)
	m = append(m, make([]byte, 8)...) // sequence and sender
	m = append(m, syscall.AF_INET, byte(v.bits), 0, 0)
	m = binary.NativeEndian.AppendUint32(m, uint32(v.link.Index))
	for _, attribute := range []uint16{syscall.IFA_LOCAL, syscall.IFA_ADDRESS} {
		m = binary.NativeEndian.AppendUint16(m, 8)
		m = binary.NativeEndian.AppendUint16(m, attribute)
		m = append(m, a[:]...)
	}
	if err := syscall.Sendto(s, m, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(s, answer, 0)
	if err != nil || n < 20 {
		return fmt.Errorf("netlink: %d bytes, %w", n, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return fmt.Errorf("%s on %s: %w", v.address, v.link.Name, syscall.Errno(-code))
	}
	return nil
}

// announce tells the network where the address is now: a gratuitous ARP (RFC 5227).
func (v *vip) announce() error {
	const arp = 0x0806
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, arp))
	s, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, int(protocol))
	if err != nil {
		return fmt.Errorf("announce %s: %w", v.address, err)
	}
	defer syscall.Close(s)
	a := v.address.As4()
	all := bytes.Repeat([]byte{0xff}, 6)
	var m []byte
	m = append(append(m, all...), v.link.HardwareAddr...)
	m = append(m, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1)
	m = append(append(m, v.link.HardwareAddr...), a[:]...)
	m = append(append(m, all...), a[:]...)
	to := &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: v.link.Index, Halen: 6}
	copy(to.Addr[:], all)
	return syscall.Sendto(s, m, 0, to)
}
