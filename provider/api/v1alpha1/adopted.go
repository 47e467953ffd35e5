package v1alpha1

// AdoptedAnnotation of a KKMachine says that its host is the machine's node already: kkbundle handover writes it. No
// run makes the host a node; it is cleaned as every other one. Its value is the KKMachine's own name, which no template
// has.
const AdoptedAnnotation = "infrastructure.kkbundle.io/adopted"
