package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// How often a condition is checked.
const pollInterval = 20 * time.Millisecond

type upgradeResult struct {
	// Acknowledged writes, and requests of writers that failed.
	Writes, WriteErrors int64
	// Calls of the informers' event handlers, and responses to informers other than 200.
	Added, Updated, Deleted, InformerErrors int64
	// Lists and watch events in the responses to informers.
	Lists, Events int
	// Leadership terms per bridge.
	LeaderTerms map[string]int
	Violations  []string
}

// upgradeCheck uses a cluster through each of its bridges.
type upgradeCheck struct {
	kinds         []*testResource
	configs       map[string]*rest.Config
	writers       []*objectWriter
	informers     []*recordedInformer
	leaderMonitor *leaderMonitor
	violations    *violations
}

// upgrades uses a cluster through all contexts of its kubeconfig that are bridges, while
// the test replaces the servers behind them, until its input ends. It writes objects of
// several resources, runs an informer for each of them, and runs candidates for one
// lease. It reads commands from its input, one per line, and prints the command with its
// argument when it is done:
//
//	wait-settled ID         wait until every informer has all objects written so far,
//	                        every writer has written since, and there is a leader
//	set-unserved RESOURCE   from now on 404 is correct for this resource
//	set-served RESOURCE     wait until every bridge serves the resource; from now on 404
//	                        is a violation
//	wait-leader BRIDGE      wait until there is a leader at another bridge, and print
//	                        "wait-leader" with that bridge
func upgrades(ctx context.Context, t target) (any, error) {
	u, err := newUpgradeCheck(t)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var writing, competing sync.WaitGroup
	for _, informer := range u.informers {
		informer.factory.Start(ctx.Done())
	}
	for _, writer := range u.writers {
		writing.Add(1)
		go writer.run(ctx, stop, &writing)
	}
	for bridge, config := range u.configs {
		client, err := kubernetes.NewForConfig(rest.CopyConfig(config))
		if err != nil {
			return nil, err
		}
		competing.Go(func() {
			if err := u.leaderMonitor.runCandidates(ctx, bridge, client, t.namespace); err != nil {
				u.violations.add("leader election not started", "%s: %v", bridge, err)
			}
		})
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := u.handleCommand(ctx, strings.Fields(lines.Text())); err != nil {
			return nil, err
		}
	}
	close(stop)
	writing.Wait()
	u.compareStores(ctx)
	cancel()
	competing.Wait()
	return u.result(), nil
}

func newUpgradeCheck(t target) (*upgradeCheck, error) {
	u := &upgradeCheck{
		kinds:      testResources(t.namespace),
		configs:    map[string]*rest.Config{},
		violations: newViolations(),
	}
	u.leaderMonitor = &leaderMonitor{violations: u.violations, terms: map[string]int{}}
	config, err := clientcmd.LoadFromFile(t.kubeconfig)
	if err != nil {
		return nil, err
	}
	for name := range config.Contexts {
		if !strings.HasPrefix(name, "bridge-") {
			continue
		}
		bridgeConfig, err := clientcmd.NewNonInteractiveClientConfig(*config, name, nil, nil).ClientConfig()
		if err != nil {
			return nil, err
		}
		bridgeConfig.QPS = -1
		u.configs[name] = bridgeConfig
		objects, err := dynamic.NewForConfig(bridgeConfig)
		if err != nil {
			return nil, err
		}
		for _, kind := range u.kinds {
			informer, err := newRecordedInformer(name, bridgeConfig, kind, u.violations)
			if err != nil {
				return nil, err
			}
			u.informers = append(u.informers, informer)
			u.writers = append(u.writers, &objectWriter{
				bridge:     name,
				kind:       kind,
				objects:    namespaced(objects.Resource(kind.resource), kind.namespace),
				violations: u.violations,
			})
		}
	}
	return u, nil
}

// testResources returns resources that all versions serve, some, and only the newest.
func testResources(namespace string) []*testResource {
	request := map[string]any{"name": "a", "exactly": map[string]any{"deviceClassName": "none.example.com"}}
	rule := map[string]any{
		"apiGroups": []any{"none.example.com"}, "apiVersions": []any{"v1"},
		"operations": []any{"CREATE"}, "resources": []any{"none"},
	}
	mutation := map[string]any{
		"patchType":          "ApplyConfiguration",
		"applyConfiguration": map[string]any{"expression": "Object{}"},
	}
	return []*testResource{{
		resource:  schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		kind:      "ConfigMap",
		namespace: namespace,
		writeLog:  newWriteLog(),
	}, {
		resource:  schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
		kind:      "ResourceClaim",
		namespace: namespace,
		spec:      map[string]any{"devices": map[string]any{"requests": []any{request}}},
		writeLog:  newWriteLog(),
	}, {
		resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
		kind:     "MutatingAdmissionPolicy",
		spec: map[string]any{
			"reinvocationPolicy": "Never",
			"matchConstraints":   map[string]any{"resourceRules": []any{rule}},
			"mutations":          []any{mutation},
		},
		writeLog: newWriteLog(),
	}}
}

func namespaced(all dynamic.NamespaceableResourceInterface, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return all
	}
	return all.Namespace(namespace)
}

func (u *upgradeCheck) handleCommand(ctx context.Context, fields []string) error {
	if len(fields) != 2 {
		return fmt.Errorf("unknown command %q", fields)
	}
	command, argument := fields[0], fields[1]
	switch command {
	case "wait-settled":
		u.waitSettled(ctx)
	case "wait-leader":
		// The leader is read once: the next moment there may be none.
		before := argument
		waitUntil(ctx, func() bool {
			argument = u.leaderMonitor.leader()
			return argument != "" && argument != before
		})
	case "set-unserved", "set-served":
		at := slices.IndexFunc(u.kinds, func(kind *testResource) bool { return kind.resource.Resource == argument })
		if at < 0 {
			return fmt.Errorf("unknown resource %q", argument)
		}
		if command == "set-served" {
			u.waitServed(ctx, u.kinds[at])
		}
		u.kinds[at].unserved.Store(command == "set-unserved")
	default:
		return fmt.Errorf("unknown command %q", fields)
	}
	fmt.Println(command, argument)
	return nil
}

func (u *upgradeCheck) waitSettled(ctx context.Context) {
	began := time.Now()
	written := make([]int64, len(u.writers))
	for at, writer := range u.writers {
		written[at] = writer.done.Load()
	}
	waitUntil(ctx, func() bool {
		for at, writer := range u.writers {
			// Two writes: the first may have been sent before.
			if !writer.kind.isUnserved() && writer.done.Load() < written[at]+2 {
				return false
			}
		}
		return true
	})
	for _, informer := range u.informers {
		live := informer.kind.writeLog.liveObjects()
		waitUntil(ctx, func() bool { return informer.kind.isUnserved() || informer.missingCount(live) == 0 })
	}
	waitUntil(ctx, func() bool { return u.leaderMonitor.renewedSince(began) })
}

// waitServed waits until every bridge serves a resource.
func (u *upgradeCheck) waitServed(ctx context.Context, kind *testResource) {
	for _, writer := range u.writers {
		if writer.kind == kind {
			waitUntil(ctx, func() bool {
				_, err := writer.objects.List(ctx, metav1.ListOptions{Limit: 1})
				return err == nil
			})
		}
	}
}

// compareStores checks that the store of each informer equals the objects that were
// written and not deleted.
func (u *upgradeCheck) compareStores(ctx context.Context) {
	for _, informer := range u.informers {
		live := informer.kind.writeLog.liveObjects()
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		waitUntil(ctx, func() bool {
			store := informer.store()
			return len(store) == len(live) && informer.missingCount(live) == 0
		})
		cancel()
		store := informer.store()
		for uid, version := range live {
			if store[uid] != version {
				informer.violation("missing at the end", "%s has version %d instead of %d", uid, store[uid], version)
			}
		}
		for uid := range store {
			if _, exists := live[uid]; !exists {
				informer.violation("not deleted at the end", "%s", uid)
			}
		}
	}
}

func (u *upgradeCheck) result() upgradeResult {
	result := upgradeResult{}
	for _, writer := range u.writers {
		result.Writes += writer.done.Load()
		result.WriteErrors += writer.errors.Load()
	}
	for _, informer := range u.informers {
		result.Added += informer.added.Load()
		result.Updated += informer.updated.Load()
		result.Deleted += informer.deleted.Load()
		result.InformerErrors += informer.errors.Load()
		lists, events := informer.recorder.verify(informer.kind.writeLog.histories(), informer.violation)
		result.Lists += lists
		result.Events += events
	}
	u.leaderMonitor.mutex.Lock()
	result.LeaderTerms = u.leaderMonitor.terms
	u.leaderMonitor.mutex.Unlock()
	result.Violations = u.violations.summaries()
	return result
}

// waitUntil polls a condition. It has no timeout of its own: the test that runs this
// program has one.
func waitUntil(ctx context.Context, condition func() bool) {
	for ctx.Err() == nil && !condition() {
		pause(ctx, pollInterval)
	}
}
