package content

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/binary"
)

// Platforms returns the platforms that a program was compiled for by its header, without variants, nil if it is no
// compiled program, or one for another machine than those with names.
func Platforms(head []byte) (list []string) {
	add := func(system, machine string) {
		if machine != "" {
			list = append(list, system+"/"+machine)
		}
	}
	le, be := binary.LittleEndian, binary.BigEndian
	switch {
	case len(head) >= 20 && bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		order := binary.ByteOrder(le)
		if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
			order = be
		}
		add("linux", elfMachine(elf.Machine(order.Uint16(head[18:])), order == le))
	case len(head) >= 8 && (le.Uint32(head) == macho.Magic64 || le.Uint32(head) == macho.Magic32):
		add("darwin", machoMachine(macho.Cpu(le.Uint32(head[4:]))))
	case len(head) >= 8 && be.Uint32(head) == macho.MagicFat:
		const entry, most = 20, 16
		for at := 8; at+4 <= len(head) && at < 8+entry*int(min(be.Uint32(head[4:]), most)); at += entry {
			add("darwin", machoMachine(macho.Cpu(be.Uint32(head[at:]))))
		}
	case len(head) >= 0x40 && bytes.HasPrefix(head, []byte("MZ")):
		at := int64(le.Uint32(head[0x3c:]))
		if at+6 <= int64(len(head)) && bytes.HasPrefix(head[at:], []byte("PE\x00\x00")) {
			add("windows", peMachine(le.Uint16(head[at+4:])))
		}
	}
	return list
}

func elfMachine(m elf.Machine, little bool) string {
	switch {
	case m == elf.EM_PPC64 && !little:
		return "ppc64"
	case m == elf.EM_PPC64:
		return "ppc64le"
	}
	return map[elf.Machine]string{
		elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_ARM: "arm", elf.EM_386: "386", elf.EM_S390: "s390x",
		elf.EM_RISCV: "riscv64", elf.EM_LOONGARCH: "loong64",
	}[m]
}

func machoMachine(c macho.Cpu) string {
	return map[macho.Cpu]string{macho.CpuAmd64: "amd64", macho.CpuArm64: "arm64", macho.Cpu386: "386"}[c]
}

func peMachine(m uint16) string {
	return map[uint16]string{
		pe.IMAGE_FILE_MACHINE_AMD64: "amd64", pe.IMAGE_FILE_MACHINE_ARM64: "arm64", pe.IMAGE_FILE_MACHINE_I386: "386",
	}[m]
}
