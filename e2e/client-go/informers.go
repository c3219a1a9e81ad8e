package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

type informersSeen struct {
	// Whether the informer got what was there by a streaming list.
	Way           string
	Wire          []string
	Events        []string
	Left          []string
	StreamingList []string
	Watch         []string
}

// informers follow objects that another client makes, changes and removes.
func informers(ctx context.Context, t target) (any, error) {
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	if _, err := objects.Create(ctx, configMap("before", nil), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	seen := informersSeen{}
	if err := seen.follow(ctx, t); err != nil {
		return nil, err
	}
	if seen.StreamingList, err = streamingList(ctx, objects); err != nil {
		return nil, fmt.Errorf("streaming list: %w", err)
	}
	if seen.Watch, err = watchToBookmark(ctx, objects); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	return seen, nil
}

func (seen *informersSeen) follow(ctx context.Context, t target) error {
	watched, wire := t.recorded()
	client, err := watched.client()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	factory := kubeinformers.NewSharedInformerFactoryWithOptions(client, 0, kubeinformers.WithNamespace(t.namespace))
	defer factory.Shutdown()
	defer stop()
	configMaps := factory.Core().V1().ConfigMaps()
	events := make(chan string, 16)
	handled, err := configMaps.Informer().AddEventHandler(tell(events))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		return fmt.Errorf("never in sync: %w", ctx.Err())
	}

	other, err := t.configMaps()
	if err != nil {
		return err
	}
	steps := []struct {
		do     func() error
		wanted string
	}{
		{func() error { return nil }, "add before, was there"},
		{func() error {
			_, err := other.Create(ctx, configMap("later", map[string]string{"a": "1"}), metav1.CreateOptions{})
			return err
		}, "add later map[a:1]"},
		{func() error {
			_, err := other.Update(ctx, configMap("later", map[string]string{"a": "2"}), metav1.UpdateOptions{})
			return err
		}, "update later map[a:1] to map[a:2]"},
		{func() error {
			return other.Delete(ctx, "later", metav1.DeleteOptions{})
		}, "delete later map[a:2]"},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return fmt.Errorf("before %q: %w", step.wanted, err)
		}
		select {
		case event := <-events:
			if event != step.wanted {
				return fmt.Errorf("instead of %q: %q", step.wanted, event)
			}
			seen.Events = append(seen.Events, event)
		case <-ctx.Done():
			return fmt.Errorf("instead of %q: %w", step.wanted, ctx.Err())
		}
	}
	left, err := configMaps.Lister().ConfigMaps(t.namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, object := range left {
		seen.Left = append(seen.Left, object.Name)
	}
	seen.Wire = wire.seen()
	seen.Way = way(seen.Wire)
	return nil
}

func tell(events chan<- string) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initially bool) {
			added := object.(*corev1.ConfigMap)
			if initially {
				events <- fmt.Sprintf("add %s, was there", added.Name)
			} else {
				events <- fmt.Sprintf("add %s %v", added.Name, added.Data)
			}
		},
		UpdateFunc: func(old, new any) {
			from, to := old.(*corev1.ConfigMap), new.(*corev1.ConfigMap)
			events <- fmt.Sprintf("update %s %v to %v", to.Name, from.Data, to.Data)
		},
		DeleteFunc: func(object any) {
			// Anything else is a guess of the informer, which has missed the event.
			deleted, ok := object.(*corev1.ConfigMap)
			if !ok {
				events <- fmt.Sprintf("missed a deletion: %T", object)
				return
			}
			events <- fmt.Sprintf("delete %s %v", deleted.Name, deleted.Data)
		},
	}
}

func way(exchanges []string) string {
	streamed := slices.ContainsFunc(exchanges, func(exchange string) bool {
		return strings.Contains(exchange, "sendInitialEvents=true") && strings.Contains(exchange, ": 200 ")
	})
	if streamed {
		return "streaming list"
	}
	return "list, then watch"
}
