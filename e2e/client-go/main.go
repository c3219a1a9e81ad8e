// client-go uses the library as its users do, one check per run:
//
//	client-go [--kubeconfig F] --namespace N [--pod P --container C] [--user-agent A] [--resource R] CHECK
//
// It prints one line of JSON. The result must be the same directly and through a bridge.
// If a check fails, the program prints the error and exits with 1.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// A check takes less than a tenth of this on an idle machine.
const checkTimeout = time.Minute

type check struct {
	run func(context.Context, target) (any, error)
	// Feature gates of the library that are off by default.
	gates []string
	// The check runs until its input ends, without a timeout.
	untilEOF bool
}

var checks = map[string]check{
	"cbor":              {run: cbor, gates: []string{"ClientsAllowCBOR", "ClientsPreferCBOR"}},
	"exec-fallback":     {run: execFallback},
	"exec-spdy":         {run: execSpdy},
	"exec-websocket":    {run: execWebSocket},
	"informers":         {run: informers},
	"leader-election":   {run: leaderElection},
	"pagination":        {run: pagination},
	"protobuf":          {run: protobuf},
	"rest-mapper":       {run: restMapper, untilEOF: true},
	"server-side-apply": {run: serverSideApply},
	"update-from-cache": {run: updateFromCache},
	"upgrades":          {run: upgrades, untilEOF: true},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig; default: $KUBECONFIG")
	namespace := flag.String("namespace", "", "namespace to use; created if it does not exist")
	pod := flag.String("pod", "", "pod to run a command in")
	container := flag.String("container", "", "container of the pod")
	userAgent := flag.String("user-agent", "", "User-Agent of all requests; default: the library's")
	resource := flag.String("resource", "csidrivers", "resource of the object that update-from-cache updates")
	flag.Parse()

	name := flag.Arg(0)
	check, known := checks[name]
	if !known || flag.NArg() != 1 {
		names := slices.Sorted(maps.Keys(checks))
		return fmt.Errorf("one check is required: %s", strings.Join(names, ", "))
	}
	// The library reads its feature gates once, when it first needs one.
	for _, gate := range check.gates {
		if err := os.Setenv("KUBE_FEATURE_"+gate, "true"); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !check.untilEOF {
		ctx, cancel = context.WithTimeout(ctx, checkTimeout)
		defer cancel()
	}
	target, err := newTarget(ctx, *kubeconfig, *namespace, *userAgent)
	if err != nil {
		return err
	}
	target.pod, target.container, target.resource = *pod, *container, *resource
	result, err := check.run(ctx, target)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
