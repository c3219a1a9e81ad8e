// client-go does what the users of that library do, one check at a time:
//
//	client-go [--kubeconfig F] --namespace N [--pod P --container C] CHECK
//
// It prints one line of JSON with what must be the same by every way to a
// server, or says what was wrong and exits with 1.
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

// No check needs a tenth of this on an idle machine.
const bound = time.Minute

type check struct {
	run func(context.Context, target) (any, error)
	// Features of the library that are off by default.
	gates []string
	// It goes on until its input ends.
	stays bool
}

var checks = map[string]check{
	"apply":          {run: apply},
	"cbor":           {run: cbor, gates: []string{"ClientsAllowCBOR", "ClientsPreferCBOR"}},
	"election":       {run: election},
	"exec-fallback":  {run: execFallback},
	"exec-spdy":      {run: execSpdy},
	"exec-websocket": {run: execWebSocket},
	"informers":      {run: informers},
	"mapping":        {run: mapping, stays: true},
	"pages":          {run: pages},
	"protobuf":       {run: protobuf},
	"upgrades":       {run: upgrades, stays: true},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the server; else KUBECONFIG says it")
	namespace := flag.String("namespace", "", "where to work; made if it is not there")
	pod := flag.String("pod", "", "where to run a command")
	container := flag.String("container", "", "in which of its containers")
	flag.Parse()

	name := flag.Arg(0)
	check, known := checks[name]
	if !known || flag.NArg() != 1 {
		names := slices.Sorted(maps.Keys(checks))
		return fmt.Errorf("give one check: %s", strings.Join(names, ", "))
	}
	// The library reads its gates once, when it first needs one.
	for _, gate := range check.gates {
		if err := os.Setenv("KUBE_FEATURE_"+gate, "true"); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !check.stays {
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	target, err := newTarget(ctx, *kubeconfig, *namespace)
	if err != nil {
		return err
	}
	target.pod, target.container = *pod, *container
	seen, err := check.run(ctx, target)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return json.NewEncoder(os.Stdout).Encode(seen)
}
