package upgrade

import (
	"testing"

	"github.com/kkbundle/kkbundle/charts/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }
