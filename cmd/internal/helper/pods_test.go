package helper_test

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/helper"
)

func TestPodProgramsAreForTheirArchitecture(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		p, err := helper.PodPrograms(arch)
		if err != nil {
			t.Skipf("%v", err)
		}
		for name, data := range map[string][]byte{"kkbundle-start": p.Start, "kkbundle-proxy": p.Proxy} {
			f, err := elf.NewFile(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("%s for %s: %v", name, arch, err)
			}
			if f.Machine != machine || f.Section(".interp") != nil {
				t.Errorf("%s for %s: machine %v, dynamically linked: %v", name, arch, f.Machine,
					f.Section(".interp") != nil)
			}
		}
		if len(p.Registry) < 1<<20 || !bytes.HasPrefix(p.Registry, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			t.Errorf("kkbundle-registry for %s: %d bytes", arch, len(p.Registry))
		}
	}
	if _, err := helper.PodPrograms("s390x"); err == nil {
		t.Error("programs for s390x")
	}
}
