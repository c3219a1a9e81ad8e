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
	// How often all kinds are resolved from what was discovered once.
	roundsOfMapper = 3
	betweenRounds  = 50 * time.Millisecond
)

// kind is what is looked for, and whether it was there before.
type kind struct {
	schema.GroupVersionKind
	found bool
}

type mappingSeen struct {
	Discoveries, Resolved, Informers, Synced int
	// What a user would have to bear.
	Lost, Failed int
	Unsynced     []string
}

// mapper resolves kinds and follows all that can be followed, as a controller
// does that learns from discovery what there is.
type mapper struct {
	namespace string
	cached    discovery.CachedDiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	factory   dynamicinformer.DynamicSharedInformerFactory
	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
	kinds     map[string]*kind
	seen      mappingSeen
}

// mapping goes on until its input ends, and is told there what must be found:
// "want GROUP/VERSION/KIND", "forget GROUP/VERSION/KIND", and "echo WORD", which
// is repeated when everything has been resolved once more. It prints "found KIND"
// once, "lost KIND" whenever one that was found is not there, "failed" whenever
// discovery is, and "saw NAME" for every ConfigMap in its namespace.
func mapping(ctx context.Context, t target) (any, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	m, err := newMapper(t, client)
	if err != nil {
		return nil, err
	}
	words := make(chan []string)
	go func() {
		defer close(words)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			words <- strings.Fields(lines.Text())
		}
	}()
	// The informers end with the process.
	for {
		var echoes []string
		for pause := time.After(betweenRounds); pause != nil; {
			select {
			case said, more := <-words:
				if !more {
					return m.end(), nil
				}
				if err := m.hear(said, &echoes); err != nil {
					return nil, err
				}
			case <-pause:
				pause = nil
			}
		}
		m.round(ctx)
		for _, echo := range echoes {
			fmt.Println("echo", echo)
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

func (m *mapper) hear(said []string, echoes *[]string) error {
	if len(said) != 2 {
		return fmt.Errorf("what is %q?", said)
	}
	word, about := said[0], said[1]
	switch word {
	case "want":
		parts := strings.Split(about, "/")
		if len(parts) != 3 {
			return fmt.Errorf("not a kind: %q", about)
		}
		if _, known := m.kinds[about]; !known {
			wanted := schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
			m.kinds[about] = &kind{GroupVersionKind: wanted}
		}
	case "forget":
		delete(m.kinds, about)
	case "echo":
		*echoes = append(*echoes, about)
	default:
		return fmt.Errorf("what is %q?", said)
	}
	return nil
}

// round discovers once, and resolves all kinds from that several times.
func (m *mapper) round(ctx context.Context) {
	m.mapper.Reset()
	m.seen.Discoveries++
	for range roundsOfMapper {
		for _, name := range slices.Sorted(maps.Keys(m.kinds)) {
			wanted := m.kinds[name]
			_, err := m.mapper.RESTMapping(wanted.GroupKind(), wanted.Version)
			switch {
			case err == nil:
				m.seen.Resolved++
				if !wanted.found {
					wanted.found = true
					fmt.Println("found", name)
				}
			case meta.IsNoMatchError(err):
				if wanted.found {
					m.seen.Lost++
					fmt.Println("lost", name, err)
				}
			default:
				// The same for all others.
				m.fail("mapping", err)
				return
			}
		}
	}
	if err := m.follow(ctx); err != nil {
		m.fail("resources", err)
	}
}

// follow starts an informer for each resource that has none yet.
func (m *mapper) follow(ctx context.Context) error {
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
			if made, ok := object.(metav1.Object); ok && made.GetNamespace() == m.namespace {
				fmt.Println("saw", made.GetName())
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
	m.seen.Failed++
	var partly *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &partly) {
		what += " in part"
	}
	fmt.Println("failed", what, strings.ReplaceAll(err.Error(), "\n", " "))
}

func (m *mapper) end() mappingSeen {
	m.seen.Informers = len(m.informers)
	for resource, informer := range m.informers {
		if informer.HasSynced() {
			m.seen.Synced++
		} else {
			m.seen.Unsynced = append(m.seen.Unsynced, resource.String())
		}
	}
	slices.Sort(m.seen.Unsynced)
	return m.seen
}
