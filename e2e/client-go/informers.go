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

type informersResult struct {
	// How the informer read the existing objects: "streaming list" or "list, then watch".
	ListMethod    string
	Requests      []string
	Events        []string
	Remaining     []string
	StreamingList []string
	Watch         []string
}

// informers watches objects that another client creates, updates and deletes.
func informers(ctx context.Context, t target) (any, error) {
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	if _, err := objects.Create(ctx, configMap("before", nil), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	result := informersResult{}
	if err := result.runInformer(ctx, t); err != nil {
		return nil, err
	}
	if result.StreamingList, err = streamingList(ctx, objects); err != nil {
		return nil, fmt.Errorf("streaming list: %w", err)
	}
	if result.Watch, err = watchToBookmark(ctx, objects); err != nil {
		return nil, fmt.Errorf("bookmark: %w", err)
	}
	return result, nil
}

func (result *informersResult) runInformer(ctx context.Context, t target) error {
	recorded, recorder := t.withRecorder()
	client, err := recorded.client()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	factory := kubeinformers.NewSharedInformerFactoryWithOptions(client, 0, kubeinformers.WithNamespace(t.namespace))
	defer factory.Shutdown()
	defer stop()
	configMaps := factory.Core().V1().ConfigMaps()
	events := make(chan string, 16)
	handled, err := configMaps.Informer().AddEventHandler(eventDescriber(events))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		return fmt.Errorf("informer did not sync: %w", ctx.Err())
	}

	other, err := t.configMaps()
	if err != nil {
		return err
	}
	steps := []struct {
		do       func() error
		expected string
	}{
		{func() error { return nil }, "add before, initial"},
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
			return fmt.Errorf("before %q: %w", step.expected, err)
		}
		select {
		case event := <-events:
			if event != step.expected {
				return fmt.Errorf("expected %q, got %q", step.expected, event)
			}
			result.Events = append(result.Events, event)
		case <-ctx.Done():
			return fmt.Errorf("expected %q: %w", step.expected, ctx.Err())
		}
	}
	remaining, err := configMaps.Lister().ConfigMaps(t.namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, object := range remaining {
		result.Remaining = append(result.Remaining, object.Name)
	}
	result.Requests = recorder.recordedExchanges()
	result.ListMethod = listMethod(result.Requests)
	return nil
}

func eventDescriber(events chan<- string) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, isInInitialList bool) {
			added := object.(*corev1.ConfigMap)
			if isInInitialList {
				events <- fmt.Sprintf("add %s, initial", added.Name)
			} else {
				events <- fmt.Sprintf("add %s %v", added.Name, added.Data)
			}
		},
		UpdateFunc: func(old, new any) {
			from, to := old.(*corev1.ConfigMap), new.(*corev1.ConfigMap)
			events <- fmt.Sprintf("update %s %v to %v", to.Name, from.Data, to.Data)
		},
		DeleteFunc: func(object any) {
			// Any other type means that the informer has missed the event.
			deleted, ok := object.(*corev1.ConfigMap)
			if !ok {
				events <- fmt.Sprintf("missed a deletion: %T", object)
				return
			}
			events <- fmt.Sprintf("delete %s %v", deleted.Name, deleted.Data)
		},
	}
}

func listMethod(exchanges []string) string {
	streamed := slices.ContainsFunc(exchanges, func(exchange string) bool {
		return strings.Contains(exchange, "sendInitialEvents=true") && strings.Contains(exchange, ": 200 ")
	})
	if streamed {
		return "streaming list"
	}
	return "list, then watch"
}
