//go:build !linux

package disk

import "os"

func writeBack(*os.File, int64, int64) {}
