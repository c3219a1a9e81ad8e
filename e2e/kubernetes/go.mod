// Marks the root. What a build takes is in versions/: one file per release,
// chosen by -modfile.
module skewbridge.dev/e2e/kubernetes

go 1.26
