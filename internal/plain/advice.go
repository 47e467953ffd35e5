package plain

// Advise returns err with a remedy: the result's Hint method returns it.
func Advise(err error, remedy string) error { return &advised{err, remedy} }

type advised struct {
	error
	remedy string
}

// Unwrap returns the error without the remedy.
func (a *advised) Unwrap() error { return a.error }

// Hint returns the remedy.
func (a *advised) Hint() string { return a.remedy }
