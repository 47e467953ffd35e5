package upgrade

// Refuses marks an error that ends a run before any change: the report of the run before it stays.
func (*RefusedError) Refuses() {}

// Refuses marks an error that ends a run before any change.
func (*UnfitError) Refuses() {}

// Refuses marks an error that ends a run before any change.
func (*NoWayBackError) Refuses() {}
