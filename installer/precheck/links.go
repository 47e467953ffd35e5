package precheck

// A Link says whether packets go from one host of the inventory to another, to a port that the other one's roles need.
// While it was tried, the other host listened there itself, or the service was there already.
type Link struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Address string `json:"address"` // of To, without port
	Network string `json:"network"` // "tcp" or "udp"
	Port    int    `json:"port"`
	OK      bool   `json:"ok"`
	// Error says why not OK: "refused", "timeout", or what else the host's kernel said.
	Error string `json:"error,omitempty"`
	// Service tells whether a service answered that was there already.
	Service bool `json:"service,omitempty"`
	// MTU is the size of the largest IP packet that came through whole and was answered, in bytes, and Want the size that
	// the sender's interface promises. They are 0 where it was not tried: it is tried once from each host to another.
	MTU  int `json:"mtu,omitempty"`
	Want int `json:"want,omitempty"`
}
