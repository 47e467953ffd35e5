package addon

import (
	"testing"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/charts/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, charts.Tasks()) }
