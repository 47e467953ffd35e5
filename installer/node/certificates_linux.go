package node

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// certificates reads the files in Probe.Certificates.
func (c *collector) certificates() {
	const most = 200
	for _, name := range c.probe.Certificates {
		files := []string{name}
		if info, err := os.Stat(c.path(name)); err != nil {
			c.problem(name, err)
			continue
		} else if info.IsDir() {
			files = c.list(name)
			files = slices.DeleteFunc(files, func(f string) bool { return filepath.Ext(f) != ".crt" && filepath.Ext(f) != ".pem" })
			for i := range files {
				files[i] = filepath.Join(name, files[i])
			}
		}
		for _, file := range files {
			info, err := os.Stat(c.path(file))
			if err != nil || !info.Mode().IsRegular() || len(c.facts.Certificates) == most {
				continue
			}
			one, ok := certificate([]byte(c.text(file)))
			if one.Path = file; ok {
				c.facts.Certificates = append(c.facts.Certificates, one)
			}
		}
	}
}

// certificate reads the first certificate of a PEM file; ok is false if the file has none, for example a key.
func certificate(data []byte) (Certificate, bool) {
	const most = 100
	block, rest := pem.Decode(data)
	if block == nil {
		return Certificate{Problem: "it is not PEM"}, true
	}
	for block != nil && block.Type != "CERTIFICATE" {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return Certificate{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Certificate{Problem: strings.ToValidUTF8(err.Error(), "\uFFFD")}, true
	}
	one := Certificate{
		Subject: cert.Subject.String(), Issuer: cert.Issuer.String(), CA: cert.IsCA,
		NotBefore: cert.NotBefore.UTC(), NotAfter: cert.NotAfter.UTC(), Names: slices.Clone(cert.DNSNames),
	}
	for _, ip := range cert.IPAddresses {
		one.Names = append(one.Names, ip.String())
	}
	one.Names = one.Names[:min(len(one.Names), most)]
	return one, true
}

// exports reads the exports of an NFS server.
func (c *collector) exports() {
	const most = 200
	for _, pattern := range []string{"/etc/exports", "/etc/exports.d/*.exports"} {
		for _, text := range c.texts(pattern) {
			for line := range strings.Lines(text) {
				line, _, _ = strings.Cut(line, "#")
				if line = strings.TrimSpace(line); line != "" && len(c.facts.Exports) < most {
					c.facts.Exports = append(c.facts.Exports, line)
				}
			}
		}
	}
}
