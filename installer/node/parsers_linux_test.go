package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testCertificate(t testing.TB, notAfter time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: notAfter.Add(-time.Hour), NotAfter: notAfter,
		DNSNames: []string{"kubernetes"}, IPAddresses: []net.IP{net.IPv4(10, 96, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	end := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	key := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("x")})
	cert := string(testCertificate(t, end))
	c := &system{
		root: makeRoot(t, map[string]string{
			"/pki/apiserver.crt": cert, "/pki/apiserver.key": "x", "/pki/both.pem": string(key) + cert,
			"/pki/key.pem":    string(key),
			"/pki/broken.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "/pki/empty.crt": "",
			"/pki/etcd/ca.crt": cert, "/pki/onlykey.crt": string(key),
			"/admin.conf": "users:\n- name: a\n  user:\n    client-certificate-data: " +
				base64.StdEncoding.EncodeToString([]byte(cert)) + "\n    client-key-data: eA==\n",
			"/flow.conf": `{"users": [{"user": {"client-certificate-data": "` +
				base64.StdEncoding.EncodeToString([]byte(cert)) + `"}}]}`,
			"/file.conf":  "users: [{user: {client-certificate: /x.pem}}]\n",
			"/token.conf": "users: [{user: {token: x}}]\n", "/other.conf": "x",
		}),
	}
	var got []string
	for _, one := range certificates(c, []string{
		"/pki", "/pki/etcd/ca.crt", "/none", "/admin.conf", "/flow.conf",
		"/file.conf", "/token.conf", "/other.conf",
	}) {
		got = append(got, fmt.Sprintf("%s %s %v %v %v", one.Path, one.Subject, one.Names, one.NotAfter.Equal(end),
			one.Problem != ""))
		if (one.CommonName == "kube-apiserver") != (one.Problem == "") {
			t.Errorf("%+v", one)
		}
	}
	good := " CN=kube-apiserver [kubernetes 10.96.0.1] true false"
	want := []string{
		"/pki/apiserver.crt" + good, "/pki/both.pem" + good, "/pki/broken.crt  [] false true",
		"/pki/empty.crt  [] false true", "/pki/onlykey.crt  [] false true",
		"/pki/etcd/ca.crt" + good, "/admin.conf" + good, "/flow.conf" + good, "/token.conf  [] false true",
		"/other.conf  [] false true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("certificates:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(c.problems) > 0 {
		t.Errorf("problems: %v", c.problems)
	}
}

// TestSync measures a real disk and memory.
func TestSync(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir()}
	if dir, err := os.MkdirTemp("/dev/shm", "kkbundle-test-"); err == nil { //nolint:usetesting // in memory
		dirs = append(dirs, dir)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	for _, dir := range dirs {
		c := &storageCollector{survey: &survey{system: system{root: "/"}, probe: Probe{Sync: dir + "/etcd"}}}
		c.mounts()
		c.sync(t.Context())
		s := c.facts.Sync
		if s.Problem != "" || s.In != dir || s.Type == "" || s.Writes < 1 || s.P50 <= 0 || s.P50 > s.P90 ||
			s.P90 > s.P99 || s.P99 > s.Max {
			t.Errorf("%s: %+v", dir, s)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	}
	c := &storageCollector{survey: &survey{system: system{root: "/"}, probe: Probe{Sync: "/proc/none"}}}
	if c.sync(t.Context()); c.facts.Sync.Problem == "" {
		t.Errorf("where nothing can be written: %+v", c.facts.Sync)
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var times []time.Duration
	for i := 200; i > 0; i-- {
		times = append(times, time.Duration(i))
	}
	var s SyncLatency
	if s.count(times); s != (SyncLatency{Writes: 200, P50: 100, P90: 180, P99: 198, Max: 200}) {
		t.Errorf("%+v", s)
	}
	one := SyncLatency{}
	if one.count([]time.Duration{7}); one.P50 != 7 || one.P99 != 7 {
		t.Errorf("%+v", one)
	}
}

// TestSchema: what is collected here is as the schema says, and the schema knows all of it.
func TestSchema(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	if err := json.Unmarshal(FactsSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	f, err := Collect(t.Context(), Probe{
		Dirs: []string{"/"}, Ports: []int{1}, Modules: []string{"overlay"},
		Users: []string{"root"}, Paths: []string{"/etc"}, Packages: []string{"bash"},
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(f.Anonymous())
	if err != nil {
		t.Fatal(err)
	}
	var facts any
	if err = json.Unmarshal(data, &facts); err != nil {
		t.Fatal(err)
	}
	if err := conforms("facts", facts, schema); err != nil {
		t.Error(err)
	}
	recorded, err := filepath.Glob("../precheck/testdata/facts/*.json")
	if err != nil || len(recorded) == 0 {
		t.Fatalf("recorded facts: %v, %v", recorded, err)
	}
	for _, file := range recorded {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(json.Unmarshal(data, &facts), conforms(file, facts, schema)); err != nil {
			t.Error(err)
		}
	}
	if err := conforms("facts", map[string]any{"version": 2.0}, schema); err == nil {
		t.Error("another version: no error")
	}
}

// conforms knows as much of JSON Schema as FactsSchema uses. Properties must be known to it here.
func conforms(at string, value any, schema map[string]any) error {
	if want, ok := schema["const"]; ok && value != want {
		return fmt.Errorf("%s is %v, not %v", at, value, want)
	}
	var errs []error
	kind := schema["type"]
	switch v := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name, one := range v {
			next, ok := properties[name].(map[string]any)
			if !ok {
				next, ok = schema["additionalProperties"].(map[string]any)
			}
			if !ok {
				return fmt.Errorf("%s.%s is not in the schema", at, name)
			}
			errs = append(errs, conforms(at+"."+name, one, next))
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				errs = append(errs, fmt.Errorf("%s.%s is missing", at, name))
			}
		}
		if kind != "object" {
			errs = append(errs, fmt.Errorf("%s is an object", at))
		}
	case []any:
		for i, one := range v {
			errs = append(errs, conforms(fmt.Sprintf("%s[%d]", at, i), one, schema["items"].(map[string]any)))
		}
	case string:
		if kind != "string" {
			errs = append(errs, fmt.Errorf("%s is a string", at))
		}
	case bool:
		if kind != "boolean" {
			errs = append(errs, fmt.Errorf("%s is a boolean", at))
		}
	case float64:
		if kind != "integer" && schema["const"] == nil {
			errs = append(errs, fmt.Errorf("%s is a number", at))
		}
	}
	return errors.Join(errs...)
}

func TestAnonymous(t *testing.T) {
	t.Parallel()
	secret := []string{
		"0123456789abcdef0123456789abcdef", "4c4c4544-0030-4d10-8050-b2c04f4a4d32", "52:54:00:12:34:56",
		"52:54:00:65:43:21",
	}
	f := Facts{MachineID: secret[0], ProductUUID: secret[1], Interfaces: []Interface{
		{Name: "eth0", MAC: secret[2]},
		{Name: "tun0"},
	}, Vacant: []Vacancy{{MACs: []string{secret[3]}}}}
	got := f.Anonymous()
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secret {
		if strings.Contains(string(text), s) {
			t.Errorf("%s is still there", s)
		}
	}
	if len(got.MachineID) != 32 || len(got.ProductUUID) != 36 || len(got.Interfaces[0].MAC) != 17 ||
		got.Interfaces[1].MAC != "" {
		t.Errorf("shapes: %s", text)
	}
	if f.Interfaces[0].MAC != secret[2] || f.Vacant[0].MACs[0] != secret[3] ||
		got.MachineID != f.Anonymous().MachineID {
		t.Error("the facts themselves have changed, or equal ones do not stay equal")
	}
	if empty := (Facts{}).Anonymous(); empty.MachineID != "" || empty.ProductUUID != "" {
		t.Errorf("out of nothing: %+v", empty)
	}
}

// TestListenEnds: whoever listened does not any more once the session has ended.
func TestListenEnds(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := l.Addr().(*net.TCPAddr).Port
	defer func() { _ = l.Close() }()
	in, toHelper := io.Pipe()
	fromHelper, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServeListen(t.Context(), in, out) }()
	address := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff) // nobody else's
	answer, err := AskListen(streams{fromHelper, toHelper}, Listen{
		Token: NewToken(), Address: netip.MustParseAddr(address), Ports: []ListenPort{
			{"tcp", 6443},
			{"udp", 8472},
			{"tcp", 0},
			{"sctp", 1},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Ports[0].Problem != "" || answer.Ports[1].Problem != "" || answer.Ports[2].Problem == "" ||
		answer.Ports[3].Problem == "" {
		t.Errorf("listening: %+v", answer)
	}
	_ = toHelper.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", address+":6443"); err == nil {
		_ = conn.Close()
		t.Error("it still listens")
	}
	var question bytes.Buffer
	if err := wire.WriteMessage(&question, Listen{
		Token: NewToken(), Address: netip.MustParseAddr("127.0.0.1"),
		Ports: []ListenPort{{"tcp", taken}},
	}); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := ServeListen(t.Context(), &question, &said); err != nil {
		t.Fatal(err)
	}
	if err := wire.ReadMessage(&said, &answer, wire.MaxAnswer); err != nil || !answer.Ports[0].Taken {
		t.Errorf("a port that is taken: %+v, %v", answer, err)
	}
}

func TestRefusedQuestions(t *testing.T) {
	t.Parallel()
	for name, question := range map[string]any{
		"token":   Listen{Token: "x", Address: netip.IPv6Loopback()},
		"address": Listen{Token: NewToken()},
		"all":     Listen{Token: NewToken(), Address: netip.IPv4Unspecified()},
		"ports":   Listen{Token: NewToken(), Address: netip.IPv6Loopback(), Ports: make([]ListenPort, maxListened+1)},
		"targets": Reach{Token: NewToken(), Targets: make([]ReachTarget, maxReached+1)},
	} {
		var in bytes.Buffer
		if err := wire.WriteMessage(&in, question); err != nil {
			t.Fatal(err)
		}
		serve := ServeListen
		if name == "targets" {
			serve = ServeReach
		}
		if err := serve(t.Context(), &in, io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzText: whatever files say, reading them ends, and without harm.
func FuzzText(f *testing.F) {
	f.Add("eth0 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\n")
	f.Add(strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) +
		" 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth1\n")
	f.Add("nameserver 127.0.0.53\noptions ndots:99999999999999999999 x\nsearch\n")
	f.Add("Defaults secure_path=\"/bin\\\"\nENV_SUPATH PATH=/x\n0-4096,7-,-1,65535-0\n")
	f.Add(":INPUT DROP [0:0]\n:KUBE-X - [0:0]\n:\n")
	f.Add(string(testCertificate(f, time.Unix(0, 0))))
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range append(routes4(text), routes6(text)...) {
			if !r.To.IsValid() {
				t.Errorf("route %+v", r)
			}
		}
		if d := resolvConf(text); d.Ndots < 0 || d.Ndots > 15 || len(d.Nameservers) > 100 {
			t.Errorf("%+v", d)
		}
		if n := ranges(text); n < 0 {
			t.Errorf("%d processors", n)
		}
		shellValues(text)
		securePath(text)
		setting(text, "ENV_SUPATH")
		unescape(text)
		certificate([]byte(text))
		var p PacketFilter
		p.legacy("ip", text)
		firewallZones(text, "public")
		ufwRules(text)
	})
}

// TestFirewallRules reads what firewalld 1.3.3 and ufw 0.36.2 of Debian 12 print.
func TestFirewallRules(t *testing.T) {
	t.Parallel()
	const zones = `drop
  target: DROP
  icmp-block-inversion: no
  interfaces: 
  sources: 
  services: 
  ports: 
  rich rules: 

public (active)
  target: default
  icmp-block-inversion: no
  interfaces: eth0
  sources: 
  services: dhcpv6-client ssh
  ports: 6443/tcp 30000-32767/udp
  protocols: 
  forward: yes
  masquerade: no
  forward-ports: 
	port=80:proto=tcp:toport=8080:toaddr=
  source-ports: 
  icmp-blocks: 
  rich rules: 
	rule family="ipv4" source address="192.0.2.0/24" accept

trusted (active)
  target: ACCEPT
  interfaces: cni0 cali+
  sources: 10.233.64.0/18 10.233.0.0/18 52:54:00:12:34:01 ipset:site
  services: 
  ports: 
`
	want := []FirewallZone{
		{
			Name: "public", Default: true, Target: "default", Interfaces: []string{"eth0"},
			Ports: []string{"6443/tcp", "30000-32767/udp"},
		},
		{
			Name: "trusted", Target: "ACCEPT", Interfaces: []string{"cni0", "cali+"},
			Sources: []string{"10.233.64.0/18", "10.233.0.0/18"},
		},
	}
	if diff := cmp.Diff(want, firewallZones(zones, "public"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	if got := firewallZones("", "public"); got == nil || len(got) > 0 {
		t.Errorf("no zones: %v, want a list without any", got)
	}
	const rules = "Added user rules (see 'ufw status' for running firewall):\nufw allow 22/tcp\nufw route allow from 10.233.64.0/18\n"
	if diff := cmp.Diff([]string{"allow 22/tcp", "route allow from 10.233.64.0/18"}, ufwRules(rules)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if got := ufwRules("Added user rules (see 'ufw status' for running firewall):\n(None)\n"); got == nil ||
		len(got) > 0 {
		t.Errorf("no rules: %q, want a list without any", got)
	}
}

// FuzzPackets: neither does what comes from the network or the kernel.
func FuzzPackets(f *testing.F) {
	a4, a6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	f.Add(arpProbe(mac, a4))
	f.Add(solicitation(mac, a6))
	f.Fuzz(func(t *testing.T, data []byte) {
		if owner, ok := arpOwner(data, a4); ok && len(owner) != 6 {
			t.Errorf("owner %v", owner)
		}
		if owner, ok := advertiser(data, a6); ok && len(owner) != 6 {
			t.Errorf("owner %v", owner)
		}
		_, _ = parseAnswers(data, func(family byte, attributes []byte) { chain(family, attributes) })
		attribute(data, 1)
		checksum(data)
	})
}
