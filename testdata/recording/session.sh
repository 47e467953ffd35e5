# shellcheck shell=bash
# What README shows. The manifest, the cluster and the upstream are the lab's; the two hosts have no route out.
kkbundle build manifest.yaml
kkbundle install -i inventory.yaml lab-1.0.0.kkb
kkbundle status -i inventory.yaml
