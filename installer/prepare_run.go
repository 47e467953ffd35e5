package installer

// newInstall prepares a run that needs hosts that fit the cluster.
func newInstall(o Options, v verb) (*run, error) {
	if err := o.Inventory.Check(o.Cluster); err != nil {
		return nil, err
	}
	return newRun(o, v)
}

// newRun prepares a run of this package's plan.
func newRun(o Options, v verb) (*run, error) {
	r, err := prepareRun(o, v, planner{
		distribution: distributionOf, access: (*Site).nodeAccess, demands: Needed, packages: PackagesOf,
	})
	if err != nil {
		return nil, err
	}
	r.precheck = r.precheckHosts
	return r, nil
}
