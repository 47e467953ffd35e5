package task

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A Machine is the name of a machine of Cluster API: NAMESPACE/CLUSTER/MACHINE. Names
// survive a move to another management cluster; UIDs do not.
type Machine string

// ParseMachine returns the machine that a text names.
func ParseMachine(text string) (Machine, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return "", fmt.Errorf("machine %.80q: want NAMESPACE/CLUSTER/MACHINE", text)
	}
	for _, part := range parts {
		if problems := validation.IsDNS1123Subdomain(part); len(problems) > 0 {
			return "", fmt.Errorf("machine %.80q: %.80q is no name of an object: %s", text, part,
				strings.Join(problems, ", "))
		}
	}
	return Machine(text), nil
}
