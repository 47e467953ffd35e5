package transfer

import "context"

// PlanAdded is Plan for a bundle and an addition.
func PlanAdded(ctx context.Context, base, addition Source) (Plan, error) {
	addition.addition = true
	return Selection{}.Plan(ctx, []Source{base, addition})
}
