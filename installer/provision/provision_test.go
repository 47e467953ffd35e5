package provision

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// capi is of the shape that Cluster API's kubeadm provider writes, with everything that its KubeadmConfig can ask for.
// https://github.com/kubernetes-sigs/cluster-api/tree/main/bootstrap/kubeadm/internal/cloudinit
const capi = `## template: jinja
#cloud-config
write_files:
-   path: /etc/kubernetes/pki/ca.key
    owner: root:root
    permissions: '0600'
    content: |
      it's "quoted" $HOME
-   path: /run/kubeadm/kubeadm.yaml
    permissions: 0o640
    content: "name: '{{ ds.meta_data.local_hostname }}'"
-   path: /etc/motd
    append: true
    defer: true
    owner: capi
    encoding: b64
    content: aGVsbG8=
bootcmd:
  - echo booted
runcmd:
  - 'kubeadm init --config /run/kubeadm/kubeadm.yaml && echo success > /run/cluster-api/bootstrap-success.complete'
  - [ls, -l, a b]
ntp: {enabled: true, servers: [10.0.0.1, "fd00::1"]}
timezone: Europe/Berlin
hostname: node1
groups:
  - docker: [capi]
  - plain
users:
  - default
  - name: capi
    groups: users, adm
    sudo: ALL=(ALL) NOPASSWD:ALL
    lock_passwd: false
    ssh_authorized_keys: [ssh-ed25519 AAAA]
disk_setup:
  /dev/sdb: {table_type: gpt, layout: true, overwrite: false}
  /dev/nvme0n1: {layout: [50, [50, 82]]}
fs_setup:
  - {label: etcd_disk, filesystem: ext4, device: /dev/sdb, partition: auto, extra_opts: [-E, lazy_itable_init=1]}
  - {filesystem: xfs, device: /dev/nvme0n1, partition: 2}
mounts:
  - [LABEL=etcd_disk, /var/lib/etcddisk]
`

func TestCloudConfig(t *testing.T) {
	t.Parallel()
	p, err := Parse("capi.yaml", []byte(capi), Metadata{Hostname: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		Command{Args: []string{"/bin/sh", "-c", "echo booted"}, Always: true},
		File{
			Path: "/etc/kubernetes/pki/ca.key", Owner: Owner{"root", "root"}, Mode: 0o600,
			Data: []byte("it's \"quoted\" $HOME\n"),
		},
		File{Path: "/run/kubeadm/kubeadm.yaml", Mode: 0o640, Data: []byte("name: 'node1'")},
		Disk{Device: "/dev/sdb", Table: "gpt", Parts: []Partition{{}}},
		Disk{Device: "/dev/nvme0n1", Table: "mbr", Parts: []Partition{{Percent: 50}, {Percent: 50, Type: "82"}}},
		Filesystem{
			Device: "/dev/sdb1", Type: "ext4", Label: "etcd_disk",
			Options: []string{"-E", "lazy_itable_init=1"},
		},
		Filesystem{Device: "/dev/nvme0n1p2", Type: "xfs"},
		Mount{"LABEL=etcd_disk", "/var/lib/etcddisk", "auto", "defaults,nofail", "0", "2"},
		Hostname{"node1"},
		Group{Name: "docker"},
		Group{Name: "plain"},
		User{
			Name: "capi", Groups: []string{"users", "adm"}, Sudo: []string{"ALL=(ALL) NOPASSWD:ALL"},
			Keys: []string{"ssh-ed25519 AAAA"},
		},
		Member{"docker", "capi"},
		Time{Servers: []string{"10.0.0.1", "fd00::1"}},
		Timezone{"Europe/Berlin"},
		File{Path: "/etc/motd", Mode: 0o644, Owner: Owner{User: "capi"}, Append: true, Data: []byte("hello")},
		Command{Args: []string{
			"/bin/sh", "-c",
			"kubeadm init --config /run/kubeadm/kubeadm.yaml && echo success > /run/cluster-api/bootstrap-success.complete",
		}},
		Command{Args: []string{"ls", "-l", "a b"}},
	}
	if diff := cmp.Diff(want, p.Steps); p.Format != "cloud-config" || diff != "" {
		t.Errorf("%s (-want +got)\n%s", p.Format, diff)
	}
}

func TestEncodings(t *testing.T) {
	t.Parallel()
	const text = "line\n'quoted' \x00\n"
	packed := gzipped(t, text)
	b64 := base64.StdEncoding.EncodeToString
	for encoding, content := range map[string]string{
		`""`:            `"line\n'quoted' \0\n"`,
		"text/plain":    `"line\n'quoted' \0\n"`,
		"b64":           b64([]byte(text)),
		"base64":        b64([]byte(text)),
		"gz":            "!!binary " + b64(packed),
		"gzip":          "!!binary " + b64(packed),
		"gz+b64":        b64(packed),
		"gz+base64":     b64(packed),
		"gzip+b64":      b64(packed),
		"gzip+base64":   b64(packed),
		"gzip+base64  ": "|\n      " + b64(packed[:9]) + "\n      " + b64(packed[9:]), // lines, as tools wrap them
	} {
		doc := fmt.Sprintf("#cloud-config\nwrite_files:\n  - path: /f\n    encoding: %s\n    content: %s\n", encoding,
			content)
		p, err := Parse("f", []byte(doc), Metadata{Hostname: "h"})
		if err != nil {
			t.Errorf("%q: %v", encoding, err)
			continue
		}
		if got := string(p.Steps[0].(File).Data); got != text {
			t.Errorf("%q: %q", encoding, got)
		}
	}
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const ignitionConfig = `{
  "ignition": {"version": "3.4.0"},
  "storage": {
    "disks": [{"device": "/dev/sdb", "wipeTable": true, "partitions": [{"label": "data", "number": 1, "sizeMiB": 100}, {"label": "rest"}]}],
    "filesystems": [{"device": "/dev/disk/by-partlabel/data", "format": "ext4", "label": "data", "path": "/var/data", "wipeFilesystem": true}],
    "directories": [{"path": "/opt/site", "mode": 448, "user": {"name": "core"}, "group": {"id": 500}}],
    "files": [
      {"path": "/etc/plain", "mode": 420, "contents": {"source": "data:,hello%20world%0A"}},
      {"path": "/etc/packed", "overwrite": true, "contents": {"source": "data:;base64,%s", "compression": "gzip", "verification": {"hash": "%s"}}},
      {"path": "/etc/log", "append": [{"source": "data:text/plain;base64,bW9yZQ=="}]}
    ],
    "links": [{"path": "/etc/localtime", "target": "/usr/share/zoneinfo/UTC", "overwrite": true}]
  },
  "systemd": {"units": [
    {"name": "site.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n", "dropins": [{"name": "10-x.conf", "contents": "[Service]\n"}]},
    {"name": "old.timer", "enabled": false}, {"name": "worse.service", "mask": true}
  ]},
  "passwd": {"users": [{"name": "core", "passwordHash": "$6$x", "sshAuthorizedKeys": ["ssh-ed25519 AAAA"], "groups": ["wheel"]}, {"name": "gone", "shouldExist": false}],
    "groups": [{"name": "site", "gid": 500}]}
}`

func TestIgnition(t *testing.T) {
	t.Parallel()
	packed := base64.StdEncoding.EncodeToString(gzipped(t, "packed"))
	doc := fmt.Sprintf(strings.ReplaceAll(ignitionConfig, "%20world%0A", "%%20world%%0A"), packed, "")
	p, err := Parse("f.ign", []byte(doc), Metadata{Hostname: "h"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		Disk{Device: "/dev/sdb", Table: "gpt", Overwrite: true, Parts: []Partition{
			{Label: "data", SizeMiB: 100},
			{Label: "rest"},
		}},
		Filesystem{Device: "/dev/disk/by-partlabel/data", Type: "ext4", Label: "data", Overwrite: true},
		Mount{"/dev/disk/by-partlabel/data", "/var/data", "ext4", "defaults,nofail", "0", "2"},
		Group{Name: "site", GID: "500"},
		User{Name: "core", PasswordHash: "$6$x", Keys: []string{"ssh-ed25519 AAAA"}, Groups: []string{"wheel"}},
		User{Name: "gone", Remove: true},
		Directory{Path: "/opt/site", Mode: 0o700, Owner: Owner{"core", "500"}},
		File{Path: "/etc/plain", Mode: 0o644, Keep: true, Data: []byte("hello world\n")},
		File{Path: "/etc/packed", Mode: 0o644, Data: []byte("packed")},
		File{Path: "/etc/log", Mode: 0o644, Append: true, Data: []byte("more")},
		Link{Path: "/etc/localtime", Target: "/usr/share/zoneinfo/UTC", Replace: true},
		Unit{
			Name: "site.service", Enable: true, Contents: []byte("[Service]\nExecStart=/bin/true\n"),
			Dropins: []Dropin{{"10-x.conf", []byte("[Service]\n")}},
		},
		Unit{Name: "old.timer", Disable: true},
		Unit{Name: "worse.service", Mask: true},
	}
	if diff := cmp.Diff(want, p.Steps); p.Format != "ignition" || diff != "" {
		t.Errorf("%s (-want +got)\n%s", p.Format, diff)
	}
}

// TestProblems holds that what is not understood is said, with its line.
func TestProblems(t *testing.T) {
	t.Parallel()
	const cloud, ign, ign2 = "#cloud-config\n", `{"ignition": {"version": "3.3.0"}, `,
		`{"ignition": {"version": "2.3.0"}, `
	for doc, want := range map[string]string{
		"":                                       "begins neither",
		"#!/bin/sh\necho":                        "begins neither",
		cloud:                                    "the document is empty",
		cloud + "packages: [vim]\n":              "f:2:1: packages of cloud-config is unknown or not supported",
		cloud + "runcmd: [a]\nruncmd: [b]\n":     "duplicate key runcmd",
		cloud + "runcmd: [[]]\n":                 "a command must have a name",
		cloud + "runcmd: [echo a: b]\n":          "quote a text",
		cloud + "x: &a []\nruncmd: *a\n":         "aliases",
		cloud + "write_files: [{content: x}]\n":  "must have a path",
		cloud + "write_files: [{path: ../x}]\n":  "an absolute path",
		cloud + "write_files: [{path: /a/../x}]": "an absolute path",
		cloud + "write_files: [{path: /x, permissions: 644}]\n":            "a mode in quotes",
		cloud + "write_files: [{path: /x, owner: 'a b'}]\n":                "invalid user or group name",
		cloud + "write_files: [{path: /x, source: {uri: 'http://x'}}]\n":   "source of write_files",
		cloud + "write_files: [{path: /x, encoding: rot13, content: a}]\n": `encoding "rot13"`,
		cloud + "write_files: [{path: /x, encoding: b64, content: '%'}]\n": "not base64",
		cloud + "write_files: [{path: /x, encoding: gz, content: a}]\n":    "not gzip",
		cloud + "mounts: [[ephemeral0, /mnt]]\n":                           "invalid device",
		cloud + "mounts: [[/srv/a, /mnt, ext4, defaults]]\n":               "a path with the option bind",
		cloud + "mounts: [[/dev/sdb, none, swap]]\n":                       "swap is not enabled",
		cloud + "ntp: {enabled: true}\n":                                   "name servers or pools",
		cloud + "users: [{name: a, plain_text_passwd: x}]\n":               "plain_text_passwd of a user",
		cloud + "users: [{name: a, ssh_authorized_keys: [\"a\\nb\"]}]\n":   "more than one line",
		cloud + "fs_setup: [{device: ephemeral0, filesystem: ext4}]\n":     "an absolute path",
		cloud + "disk_setup: {/dev/sdb: {layout: [200]}}\n":                "in percent",
		"## template: jinja\n" + cloud + "runcmd:\n - '{% if x %}'\n":      "f:4:1: of jinja",
		`{}`:                                 "ignition.version",
		`{"ignition": {"version": "2.4.0"}}`: `"2.4.0"`,
		`{"ignition": {"version": "3.0.0", "config": {"merge": [{"source": "data:,x"}]}}}`:                                        "config of ignition",
		ign + `"storage": {"raid": [{"name": "a"}]}}`:                                                                             "raid of storage",
		ign + `"kernelArguments": {"shouldExist": ["a"]}}`:                                                                        "kernelArguments: not supported",
		ign + `"storage": {"files": [{"filesystem": "root", "path": "/a"}]}}`:                                                     "filesystem of a file",
		ign2 + `"storage": {"files": [{"filesystem": "data", "path": "/a"}]}}`:                                                    `filesystem "data"`,
		ign2 + `"storage": {"filesystems": [{"name": "data", "path": "/sysroot"}]}}`:                                              "must have a device",
		ign2 + `"networkd": {"units": [{"name": "a.network"}]}}`:                                                                  "networkd: not supported",
		cloud + "users: [{name: a, inactive: true}]\n":                                                                            "inactive of a user is not supported",
		ign + `"storage": {"files": [{"path": "/a", "contents": {"source": "https://x/y"}}]}}`:                                    "contents from https",
		ign + `"storage": {"files": [{"path": "/a", "contents": {"source": "data:,x", "verification": {"hash": "sha256-00"}}}]}}`: ", want 00",
		ign + `"storage": {"disks": [{"device": "/dev/sdb", "partitions": [{"number": 1, "shouldExist": false}]}]}}`:              "f:1:125: removing a partition (shouldExist: false) is not supported",
		ign + `"systemd": {"units": [{"name": "../x.service"}]}}`:                                                                 "invalid unit name",
	} {
		_, err := Parse("f", []byte(doc), Metadata{Hostname: "h"})
		var problems document.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", doc, want, err)
		}
	}
}

// TestIgnition2 reads spec 2.3, in the form in which Cluster API's kubeadm provider has it written: with empty parts,
// and with everything that a KubeadmConfig can ask for.
// https://github.com/kubernetes-sigs/cluster-api/blob/main/bootstrap/kubeadm/pkg/ignition/clc/clc.go
func TestIgnition2(t *testing.T) {
	t.Parallel()
	const doc = `{"ignition": {"config": {}, "security": {"tls": {}}, "timeouts": {}, "version": "2.3.0"}, "networkd": {},
  "passwd": {"users": [{"name": "core", "groups": ["wheel"], "homeDir": "/home/core", "sshAuthorizedKeys": ["ssh-ed25519 AAAA"]}]},
  "storage": {
    "disks": [{"device": "/dev/sdb", "wipeTable": true, "partitions": [{}]}],
    "filesystems": [{"mount": {"device": "/dev/sdb1", "format": "ext4", "label": "etcd_disk", "options": ["-E", "lazy"], "wipeFilesystem": true}, "name": "etcd_disk"}],
    "directories": [{"filesystem": "root", "path": "/opt/a"}],
    "links": [{"filesystem": "root", "path": "/etc/l", "target": "/etc/x"}],
    "files": [
      {"filesystem": "root", "path": "/etc/sudoers.d/core", "contents": {"source": "data:,core%20ALL%0A", "verification": {}}, "mode": 384},
      {"filesystem": "root", "path": "/etc/bin", "contents": {"source": "data:;base64,aGVsbG8=", "verification": {}}, "group": {"name": "root"}, "user": {"name": "root"}},
      {"append": true, "filesystem": "root", "path": "/etc/more", "contents": {"source": "data:,more", "verification": {}}},
      {"filesystem": "root", "path": "/etc/kept", "overwrite": false, "contents": {"source": "", "verification": {}}}
    ]},
  "systemd": {"units": [
    {"contents": "[Unit]\n", "enabled": true, "name": "kubeadm.service"}, {"enabled": true, "name": "ntpd.service"},
    {"enable": true, "name": "old.service"}, {"contents": "[Mount]\n", "enabled": true, "name": "var-lib-etcd.mount"}]}}`
	p, err := Parse("f.ign", []byte(doc), Metadata{Hostname: "h"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		Disk{Device: "/dev/sdb", Table: "gpt", Overwrite: true, Parts: []Partition{{}}},
		Filesystem{
			Device: "/dev/sdb1", Type: "ext4", Label: "etcd_disk", Overwrite: true,
			Options: []string{"-E", "lazy"},
		},
		User{Name: "core", Home: "/home/core", Keys: []string{"ssh-ed25519 AAAA"}, Groups: []string{"wheel"}},
		Directory{Path: "/opt/a", Mode: 0o755},
		File{Path: "/etc/sudoers.d/core", Mode: 0o600, Data: []byte("core ALL\n")},
		File{Path: "/etc/bin", Mode: 0o644, Data: []byte("hello"), Owner: Owner{"root", "root"}},
		File{Path: "/etc/more", Mode: 0o644, Append: true, Data: []byte("more")},
		File{Path: "/etc/kept", Mode: 0o644, Keep: true},
		Link{Path: "/etc/l", Target: "/etc/x"},
		Unit{Name: "kubeadm.service", Enable: true, Contents: []byte("[Unit]\n")},
		Unit{Name: "ntpd.service", Enable: true},
		Unit{Name: "old.service", Enable: true},
		Unit{Name: "var-lib-etcd.mount", Enable: true, Contents: []byte("[Mount]\n")},
	}
	if diff := cmp.Diff(want, p.Steps); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestIgnitionEmptyParts reads spec 3 with the parts that Go's encoder writes empty.
func TestIgnitionEmptyParts(t *testing.T) {
	t.Parallel()
	const doc = `{"ignition": {"config": {"replace": {"verification": {}}}, "proxy": {}, "security": {"tls": {}}, "timeouts": {}, "version": "3.2.0"},
		"kernelArguments": {}, "passwd": {}, "storage": {"luks": [], "raid": []}, "systemd": {}}`
	if p, err := Parse("f", []byte(doc), Metadata{Hostname: "h"}); err != nil || len(p.Steps) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestCloudInitNames reads the names that cloud-init takes for one thing.
func TestCloudInitNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"ds.meta_data.local_hostname", "ds.meta_data.hostname", "v1.local_hostname", "local_hostname", "instance_id",
		"ds.meta_data['local-hostname']", `v1["instance_id"]`,
	} {
		p, err := Parse("f", []byte("## template: jinja\n#cloud-config\nruncmd:\n- echo {{ "+name+" }}\n"), Metadata{Hostname: "node1"})
		if err != nil || !cmp.Equal(p.Steps, []Step{Command{Args: []string{"/bin/sh", "-c", "echo node1"}}}) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	p, err := Parse("f", []byte(
		"#cloud-config\nfqdn: a.example.org\nusers:\n- {name: u, primary-group: g, no-log-init: true, ssh-authorized-keys: [k], inactive: false}\n"), Metadata{Hostname: "h"})
	want := []Step{Hostname{Name: "a"}, User{Name: "u", PrimaryGroup: "g", Keys: []string{"k"}, Lock: true}}
	if err != nil || !cmp.Equal(p.Steps, want) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err = Parse("f", []byte("#cloud-config\nfqdn: a.example.org\nhostname: b\n"), Metadata{Hostname: "h"}); err != nil ||
		!cmp.Equal(p.Steps, []Step{Hostname{Name: "b"}}) {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestCloudInitAddresses fills in the node's addresses, and refuses a document that wants one that the node lacks.
func TestCloudInitAddresses(t *testing.T) {
	t.Parallel()
	host := Metadata{Hostname: "node1", IPv4: netip.MustParseAddr("10.0.0.7")}
	for name, want := range map[string]string{
		"ds.meta_data.local_ipv4": "10.0.0.7", "ds.meta_data['local-ipv4']": "10.0.0.7", "ds.meta_data.local_ipv6": "", "ds.meta_data.public_ipv4": "",
	} {
		p, err := Parse("f", []byte("## template: jinja\n#cloud-config\nruncmd:\n- echo {{ "+name+" }}\n"), host)
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && !cmp.Equal(p.Steps, []Step{Command{Args: []string{"/bin/sh", "-c", "echo " + want}}}) {
			t.Errorf("%s: %+v", name, p)
		} else if name == "ds.meta_data.local_ipv6" && !strings.Contains(err.Error(), "f:4:1: node1 has no IPv6 address") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIgnitionShouldExist holds that a partition, user or group is made if the document says so or says nothing, and
// removed or refused otherwise.
func TestIgnitionShouldExist(t *testing.T) {
	t.Parallel()
	const doc = `{"ignition": {"version": "3.3.0"}, "storage": {"disks": [{"device": "/dev/sdb", "partitions": [{"label": "a"%s}]}]},
		"passwd": {"groups": [{"name": "g"%s}], "users": [{"name": "u"%s}]}}`
	for _, one := range []struct {
		partition, account string
		remove             bool
	}{{}, {`, "shouldExist": true`, `, "shouldExist": true`, false}, {"", `, "shouldExist": false`, true}} {
		p, err := Parse("f", fmt.Appendf(nil, doc, one.partition, one.account, one.account), Metadata{Hostname: "h"})
		if err != nil {
			t.Fatal(err)
		}
		want := []Step{
			Disk{Device: "/dev/sdb", Table: "gpt", Parts: []Partition{{Label: "a"}}},
			Group{Name: "g", Remove: one.remove},
			User{Name: "u", Remove: one.remove},
		}
		if diff := cmp.Diff(want, p.Steps); diff != "" {
			t.Errorf("%+v (-want +got)\n%s", one, diff)
		}
	}
	_, err := Parse("f", fmt.Appendf(nil, doc, `, "shouldExist": false, "number": 1`, "", ""), Metadata{Hostname: "h"})
	if err == nil || !strings.Contains(err.Error(), "removing a partition (shouldExist: false) is not supported") {
		t.Errorf("a partition that must not exist: %v", err)
	}
}

// FuzzParse holds that whatever is read either has steps that can be named, or problems.
func FuzzParse(f *testing.F) {
	f.Add([]byte(capi))
	f.Add([]byte(strings.ReplaceAll(ignitionConfig, "%s", "")))
	f.Add([]byte(`{"ignition": {"version": "2.3.0"}, "storage": {"files": [{"path": "/a", "append": true, "contents": {"source": "data:,x"}}], "filesystems": [{"mount": {}}]}}`))
	f.Add([]byte("#cloud-config\nruncmd: [[a], b]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f", data, Metadata{Hostname: "h"})
		if (p == nil) == (err == nil) {
			t.Fatalf("%v, %v", p, err)
		}
		if err != nil {
			return
		}
		for _, s := range p.Steps {
			if s.String() == "" {
				t.Errorf("%#v has no name", s)
			}
		}
	})
}
