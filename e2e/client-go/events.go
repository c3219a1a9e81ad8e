package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var errEnded = errors.New("the watch has ended")

// nextEvent is what a watch sees next, in words: `ADDED name`, `BOOKMARK`.
func nextEvent(ctx context.Context, watching watch.Interface) (string, error) {
	select {
	case event, open := <-watching.ResultChan():
		if !open {
			return "", errEnded
		}
		return words(event)
	case <-ctx.Done():
		return "", fmt.Errorf("no event: %w", ctx.Err())
	}
}

func words(event watch.Event) (string, error) {
	object, err := meta.Accessor(event.Object)
	switch {
	case event.Type == watch.Error || err != nil:
		return "", fmt.Errorf("%s in a watch: %v", event.Type, event.Object)
	case event.Type != watch.Bookmark:
		return string(event.Type) + " " + object.GetName(), nil
	case object.GetResourceVersion() == "":
		return "", errors.New("a bookmark without a resource version")
	case object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
		return "BOOKMARK after the initial events", nil
	default:
		return "BOOKMARK", nil
	}
}

// await expects exactly this event.
func await(ctx context.Context, watching watch.Interface, wanted string) error {
	got, err := nextEvent(ctx, watching)
	if err == nil && got != wanted {
		err = fmt.Errorf("%q", got)
	}
	if err != nil {
		return fmt.Errorf("instead of %q: %w", wanted, err)
	}
	return nil
}
