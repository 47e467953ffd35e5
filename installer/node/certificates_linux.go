package node

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// certificates reads PEM files, kubeconfigs, and the PEM files in directories.
func certificates(s *system, names []string) []Certificate {
	const most = 200
	var list []Certificate
	for _, name := range names {
		files := []string{name}
		if info, err := os.Stat(s.path(name)); err != nil {
			s.problem(name, err)
			continue
		} else if info.IsDir() {
			files = s.list(name)
			files = slices.DeleteFunc(files,
				func(f string) bool { return filepath.Ext(f) != ".crt" && filepath.Ext(f) != ".pem" })
			for i := range files {
				files[i] = filepath.Join(name, files[i])
			}
		}
		for _, file := range files {
			info, err := os.Stat(s.path(file))
			if err != nil || !info.Mode().IsRegular() || len(list) == most {
				continue
			}
			text, err := s.read(file)
			one, ok := Certificate{}, true
			switch {
			case err != nil:
				one.Problem = err.Error()
			case filepath.Ext(file) == kubeconfigExt:
				one, ok = clientCertificate(text)
			default:
				one, ok = certificate([]byte(text))
			}
			if !ok && filepath.Ext(file) == ".crt" {
				one, ok = Certificate{Problem: "it has no certificate"}, true
			}
			if one.Path = file; ok {
				list = append(list, one)
			}
		}
	}
	return list
}

const kubeconfigExt = ".conf"

// clientCertificate reads the certificate in a kubeconfig; ok is false if the kubeconfig names a file instead, which
// has a place of its own. Nothing else of the kubeconfig is looked at: it has keys.
func clientCertificate(kubeconfig string) (one Certificate, ok bool) {
	data := regexp.MustCompile(
		`\bclient-certificate-data["']?:\s*["']?([A-Za-z0-9+/=]+)`).FindStringSubmatch(kubeconfig)
	switch {
	case data != nil:
		if text, err := base64.StdEncoding.DecodeString(data[1]); err == nil {
			if block, _ := pem.Decode(text); block != nil {
				return certificate(text)
			}
		}
	case strings.Contains(kubeconfig, "client-certificate:"):
		return Certificate{}, false
	case !strings.Contains(kubeconfig, "users"):
		return Certificate{Problem: "not a kubeconfig with a user"}, true
	}
	return Certificate{Problem: "the kubeconfig's user has no certificate"}, true
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
		Subject: cert.Subject.String(), CommonName: cert.Subject.CommonName, Issuer: cert.Issuer.String(),
		CA:        cert.IsCA,
		NotBefore: cert.NotBefore.UTC(), NotAfter: cert.NotAfter.UTC(), Names: slices.Clone(cert.DNSNames),
	}
	for _, ip := range cert.IPAddresses {
		one.Names = append(one.Names, ip.String())
	}
	one.Names = one.Names[:min(len(one.Names), most)]
	return one, true
}

// exports reads the exports of an NFS server.
func exports(s *system) []string {
	const most = 200
	var list []string
	s.lines(func(line string) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" && len(list) < most {
			list = append(list, line)
		}
	}, "/etc/exports", "/etc/exports.d/*.exports")
	return list
}
