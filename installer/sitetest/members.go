//go:build linux

package sitetest

import (
	"encoding/pem"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
)

// OtherAuthority is a certificate authority that is not testdata/ca.crt.
func OtherAuthority(t *testing.T) string {
	t.Helper()
	a, err := task.LoadAuthority(NewWorkDir(t), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate.Raw}))
}
