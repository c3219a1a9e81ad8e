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

// How often it is looked whether something has come to pass.
const look = 20 * time.Millisecond

type upgradesSeen struct {
	// What was acknowledged to writers, and how often they were refused.
	Writes, Refused int64
	// What informers have called out, and how often they were refused.
	Added, Updated, Deleted, Unserved int64
	// What came to them over the wire.
	Lists, Events int
	// Who has led how often.
	Terms  map[string]int
	Faults []string
}

// upgrading is a cluster in use, by each of its bridges.
type upgrading struct {
	kinds     []*followed
	ways      map[string]*rest.Config
	writers   []*writer
	followers []*follower
	throne    *throne
	faults    *faults
}

// upgrades uses a cluster by all contexts of its kubeconfig that are bridges,
// whatever becomes of the servers behind them, until its input ends: objects of
// some resources are written and followed, and candidates compete for a lease.
// It hears, and repeats when it is so:
//
//	settled WORD      what was written up to now is known to every informer, every
//	                  writer has written since, and somebody leads
//	absent RESOURCE   not to find it is true from now on
//	present RESOURCE  every bridge serves it, and must from now on
//	leader BRIDGE     somebody leads, and not by that bridge; says by which
func upgrades(ctx context.Context, t target) (any, error) {
	u, err := newUpgrading(t)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var writing, competing sync.WaitGroup
	for _, follower := range u.followers {
		follower.factory.Start(ctx.Done())
	}
	for _, writer := range u.writers {
		writing.Add(1)
		go writer.run(ctx, stop, &writing)
	}
	for way, config := range u.ways {
		client, err := kubernetes.NewForConfig(rest.CopyConfig(config))
		if err != nil {
			return nil, err
		}
		competing.Go(func() {
			if err := u.throne.compete(ctx, way, client, t.namespace); err != nil {
				u.faults.add("no candidate", "%s: %v", way, err)
			}
		})
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := u.hear(ctx, strings.Fields(lines.Text())); err != nil {
			return nil, err
		}
	}
	close(stop)
	writing.Wait()
	u.compare(ctx)
	cancel()
	competing.Wait()
	return u.seen(), nil
}

func newUpgrading(t target) (*upgrading, error) {
	u := &upgrading{
		kinds:  kindsIn(t.namespace),
		ways:   map[string]*rest.Config{},
		faults: newFaults(),
	}
	u.throne = &throne{faults: u.faults, terms: map[string]int{}}
	config, err := clientcmd.LoadFromFile(t.kubeconfig)
	if err != nil {
		return nil, err
	}
	for name := range config.Contexts {
		if !strings.HasPrefix(name, "bridge-") {
			continue
		}
		way, err := clientcmd.NewNonInteractiveClientConfig(*config, name, nil, nil).ClientConfig()
		if err != nil {
			return nil, err
		}
		way.QPS = -1
		u.ways[name] = way
		objects, err := dynamic.NewForConfig(way)
		if err != nil {
			return nil, err
		}
		for _, kind := range u.kinds {
			follower, err := newFollower(name, way, kind, u.faults)
			if err != nil {
				return nil, err
			}
			u.followers = append(u.followers, follower)
			u.writers = append(u.writers, &writer{
				by:      name,
				kind:    kind,
				objects: namespaced(objects.Resource(kind.resource), kind.namespace),
				faults:  u.faults,
			})
		}
	}
	return u, nil
}

// kindsIn are resources of all versions, of some, and of the newest only.
func kindsIn(namespace string) []*followed {
	request := map[string]any{"name": "a", "exactly": map[string]any{"deviceClassName": "none.example.com"}}
	rule := map[string]any{
		"apiGroups": []any{"none.example.com"}, "apiVersions": []any{"v1"},
		"operations": []any{"CREATE"}, "resources": []any{"none"},
	}
	mutation := map[string]any{
		"patchType":          "ApplyConfiguration",
		"applyConfiguration": map[string]any{"expression": "Object{}"},
	}
	return []*followed{{
		resource:  schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		kind:      "ConfigMap",
		namespace: namespace,
		ledger:    newLedger(),
	}, {
		resource:  schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
		kind:      "ResourceClaim",
		namespace: namespace,
		spec:      map[string]any{"devices": map[string]any{"requests": []any{request}}},
		ledger:    newLedger(),
	}, {
		resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
		kind:     "MutatingAdmissionPolicy",
		spec: map[string]any{
			"reinvocationPolicy": "Never",
			"matchConstraints":   map[string]any{"resourceRules": []any{rule}},
			"mutations":          []any{mutation},
		},
		ledger: newLedger(),
	}}
}

func namespaced(all dynamic.NamespaceableResourceInterface, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return all
	}
	return all.Namespace(namespace)
}

func (u *upgrading) hear(ctx context.Context, said []string) error {
	if len(said) != 2 {
		return fmt.Errorf("what is %q?", said)
	}
	word, about := said[0], said[1]
	switch word {
	case "settled":
		u.settle(ctx)
	case "leader":
		// Not asked again: it may have no leader the next moment.
		before := about
		until(ctx, func() bool { about = u.throne.leader(); return about != "" && about != before })
	case "absent", "present":
		at := slices.IndexFunc(u.kinds, func(kind *followed) bool { return kind.resource.Resource == about })
		if at < 0 {
			return fmt.Errorf("no such resource: %q", about)
		}
		if word == "present" {
			u.find(ctx, u.kinds[at])
		}
		u.kinds[at].absent.Store(word == "absent")
	default:
		return fmt.Errorf("what is %q?", said)
	}
	fmt.Println(word, about)
	return nil
}

func (u *upgrading) settle(ctx context.Context) {
	began := time.Now()
	written := make([]int64, len(u.writers))
	for at, writer := range u.writers {
		written[at] = writer.done.Load()
	}
	until(ctx, func() bool {
		for at, writer := range u.writers {
			// The first may have been on its way before.
			if !writer.kind.isAbsent() && writer.done.Load() < written[at]+2 {
				return false
			}
		}
		return true
	})
	for _, follower := range u.followers {
		living := follower.kind.ledger.living()
		until(ctx, func() bool { return follower.kind.isAbsent() || follower.lacks(living) == 0 })
	}
	until(ctx, func() bool { return u.throne.isRenewed(began) })
}

// find waits until every bridge serves a resource.
func (u *upgrading) find(ctx context.Context, kind *followed) {
	for _, writer := range u.writers {
		if writer.kind == kind {
			until(ctx, func() bool {
				_, err := writer.objects.List(ctx, metav1.ListOptions{Limit: 1})
				return err == nil
			})
		}
	}
}

// compare wants each informer to have what there is in the end, and to have been
// told nothing else on the way.
func (u *upgrading) compare(ctx context.Context) {
	for _, follower := range u.followers {
		living := follower.kind.ledger.living()
		ctx, cancel := context.WithTimeout(ctx, bound)
		until(ctx, func() bool {
			store := follower.store()
			return len(store) == len(living) && follower.lacks(living) == 0
		})
		cancel()
		store := follower.store()
		for uid, version := range living {
			if store[uid] != version {
				follower.fault("missing in the end", "%s has version %d for %d", uid, store[uid], version)
			}
		}
		for uid := range store {
			if _, lives := living[uid]; !lives {
				follower.fault("still there in the end", "%s", uid)
			}
		}
	}
}

func (u *upgrading) seen() upgradesSeen {
	seen := upgradesSeen{}
	for _, writer := range u.writers {
		seen.Writes += writer.done.Load()
		seen.Refused += writer.refused.Load()
	}
	for _, follower := range u.followers {
		seen.Added += follower.added.Load()
		seen.Updated += follower.updated.Load()
		seen.Deleted += follower.deleted.Load()
		seen.Unserved += follower.refused.Load()
		lists, events := follower.streams.judge(follower.kind.ledger.written(), follower.fault)
		seen.Lists += lists
		seen.Events += events
	}
	u.throne.mutex.Lock()
	seen.Terms = u.throne.terms
	u.throne.mutex.Unlock()
	seen.Faults = u.faults.told()
	return seen
}

// until looks again and again; whoever runs this decides for how long.
func until(ctx context.Context, is func() bool) {
	for ctx.Err() == nil && !is() {
		pause(ctx, look)
	}
}
