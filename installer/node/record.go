package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// Anonymous returns the facts in a form that can be given to others, for a test or for support: values that only
// identify the machine (its ids, hardware addresses) are replaced by a digest, so that equal ones stay equal. Names and
// addresses stay, because rules are about them; facts contain no passwords.
func (f Facts) Anonymous() Facts {
	f.MachineID = digest(f.MachineID)[:min(len(f.MachineID), 32)]
	if f.ProductUUID != "" {
		d := digest(f.ProductUUID)
		f.ProductUUID = fmt.Sprintf("%s-%s-%s-%s-%s", d[:8], d[8:12], d[12:16], d[16:20], d[20:32])
	}
	f.Interfaces = slices.Clone(f.Interfaces)
	for i := range f.Interfaces {
		f.Interfaces[i].MAC = anonymousMAC(f.Interfaces[i].MAC)
	}
	f.Vacant = slices.Clone(f.Vacant)
	for i := range f.Vacant {
		f.Vacant[i].MACs = slices.Clone(f.Vacant[i].MACs)
		for j, mac := range f.Vacant[i].MACs {
			f.Vacant[i].MACs[j] = anonymousMAC(mac)
		}
	}
	return f
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// anonymousMAC returns a locally administered address.
func anonymousMAC(mac string) string {
	if mac == "" {
		return ""
	}
	d := digest(mac)
	return fmt.Sprintf("02:%s:%s:%s:%s:%s", d[:2], d[2:4], d[4:6], d[6:8], d[8:10])
}
