//go:build !linux

package bundle

import "os"

func writeBack(*os.File, int64, int64) {}
