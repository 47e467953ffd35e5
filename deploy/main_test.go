package deploy_test

import (
	"testing"

	helm "github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/charts/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, helm.Tasks()) }
