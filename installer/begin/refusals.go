package begin

// Refuses marks an error that ends a run before any change.
func (*ForeignError) Refuses() {}

// Refuses marks an error that ends a run before any change.
func (*OwnedError) Refuses() {}
