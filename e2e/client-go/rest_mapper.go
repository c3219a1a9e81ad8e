package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
)

const (
	// How often all kinds are resolved from one discovery.
	resolvesPerDiscovery = 3
	discoveryInterval    = 50 * time.Millisecond
)

// kind is a kind to resolve, and whether it was resolved before.
type kind struct {
	schema.GroupVersionKind
	found bool
}

type restMapperResult struct {
	Discoveries, Resolved, Informers, Synced int
	// Kinds that were not found any more, and failures of discovery.
	Lost, Failed int
	Unsynced     []string
}

// mapper resolves kinds and runs an informer for each resource that can be watched, as a
// controller does that depends on discovery.
type mapper struct {
	namespace string
	cached    discovery.CachedDiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	factory   dynamicinformer.DynamicSharedInformerFactory
	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
	kinds     map[string]*kind
	counts    restMapperResult
}

// restMapper resolves kinds until its input ends. It reads commands, one per line:
//
//	add-kind GROUP/VERSION/KIND     this kind has to be found from now on
//	remove-kind GROUP/VERSION/KIND  this kind need not be found any more
//	resolve-all ID                  repeated when all kinds have been resolved once more
//
// It prints "found KIND" once, "lost KIND" when a kind that was found is not found any
// more, "failed" when discovery fails, and "configmap NAME" for every ConfigMap in its
// namespace.
func restMapper(ctx context.Context, t target) (any, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	m, err := newMapper(t, client)
	if err != nil {
		return nil, err
	}
	commands := make(chan []string)
	go func() {
		defer close(commands)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			commands <- strings.Fields(lines.Text())
		}
	}()
	// The informers end with the process.
	for {
		var pending []string
		for pause := time.After(discoveryInterval); pause != nil; {
			select {
			case fields, more := <-commands:
				if !more {
					return m.result(), nil
				}
				if err := m.handleCommand(fields, &pending); err != nil {
					return nil, err
				}
			case <-pause:
				pause = nil
			}
		}
		m.round(ctx)
		for _, id := range pending {
			fmt.Println("resolve-all", id)
		}
	}
}

func newMapper(t target, client *kubernetes.Clientset) (*mapper, error) {
	objects, err := dynamic.NewForConfig(t.config)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(client.Discovery())
	return &mapper{
		namespace: t.namespace,
		cached:    cached,
		mapper:    restmapper.NewDeferredDiscoveryRESTMapper(cached),
		factory:   dynamicinformer.NewDynamicSharedInformerFactory(objects, 0),
		informers: map[schema.GroupVersionResource]cache.SharedIndexInformer{},
		kinds:     map[string]*kind{},
	}, nil
}

func (m *mapper) handleCommand(fields []string, pending *[]string) error {
	if len(fields) != 2 {
		return fmt.Errorf("unknown command %q", fields)
	}
	command, argument := fields[0], fields[1]
	switch command {
	case "add-kind":
		parts := strings.Split(argument, "/")
		if len(parts) != 3 {
			return fmt.Errorf("not a kind: %q", argument)
		}
		if _, known := m.kinds[argument]; !known {
			wanted := schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
			m.kinds[argument] = &kind{GroupVersionKind: wanted}
		}
	case "remove-kind":
		delete(m.kinds, argument)
	case "resolve-all":
		*pending = append(*pending, argument)
	default:
		return fmt.Errorf("unknown command %q", fields)
	}
	return nil
}

// round discovers once, and resolves all kinds from that several times.
func (m *mapper) round(ctx context.Context) {
	m.mapper.Reset()
	m.counts.Discoveries++
	for range resolvesPerDiscovery {
		for _, name := range slices.Sorted(maps.Keys(m.kinds)) {
			wanted := m.kinds[name]
			_, err := m.mapper.RESTMapping(wanted.GroupKind(), wanted.Version)
			switch {
			case err == nil:
				m.counts.Resolved++
				if !wanted.found {
					wanted.found = true
					fmt.Println("found", name)
				}
			case meta.IsNoMatchError(err):
				if wanted.found {
					m.counts.Lost++
					fmt.Println("lost", name, err)
				}
			default:
				// All other kinds would fail in the same way.
				m.fail("mapping", err)
				return
			}
		}
	}
	if err := m.startInformers(ctx); err != nil {
		m.fail("resources", err)
	}
}

// startInformers starts an informer for each resource that has none yet.
func (m *mapper) startInformers(ctx context.Context) error {
	lists, err := discovery.ServerPreferredResources(m.cached)
	if err != nil {
		return err
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists)
	resources, err := discovery.GroupVersionResources(lists)
	if err != nil {
		return err
	}
	for resource := range resources {
		if _, known := m.informers[resource]; known {
			continue
		}
		informer := m.factory.ForResource(resource).Informer()
		m.informers[resource] = informer
		if resource.Resource != "configmaps" {
			continue
		}
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
			if added, ok := object.(metav1.Object); ok && added.GetNamespace() == m.namespace {
				fmt.Println("configmap", added.GetName())
			}
		}})
		if err != nil {
			return err
		}
	}
	m.factory.Start(ctx.Done())
	return nil
}

func (m *mapper) fail(what string, err error) {
	m.counts.Failed++
	var partial *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &partial) {
		what += " (partially)"
	}
	fmt.Println("failed", what, strings.ReplaceAll(err.Error(), "\n", " "))
}

func (m *mapper) result() restMapperResult {
	m.counts.Informers = len(m.informers)
	for resource, informer := range m.informers {
		if informer.HasSynced() {
			m.counts.Synced++
		} else {
			m.counts.Unsynced = append(m.counts.Unsynced, resource.String())
		}
	}
	slices.Sort(m.counts.Unsynced)
	return m.counts
}
