// Package sandboxtest makes the binary of a package's tests a sandbox process.
package sandboxtest

import (
	"log"
	"os"
	"testing"

	"github.com/kkbundle/kkbundle/charts/sandbox"
)

// Main is the TestMain of tests that have sandbox processes do tasks. If the binary is started as such a process, it
// does what main of every program with these tasks has to.
func Main(m *testing.M, tasks sandbox.Tasks) {
	if len(os.Args) > 1 && os.Args[1] == sandbox.Command {
		if err := tasks.Run(os.Stdin, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	m.Run()
}
