package build

// For the test of the barriers around a finder process.
var (
	SeparateNetwork = separateNetwork
	Isolate         = isolate
)
