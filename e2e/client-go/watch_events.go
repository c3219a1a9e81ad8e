package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var errWatchEnded = errors.New("the watch has ended")

// nextEvent returns a description of the next event of a watch: `ADDED name`, `BOOKMARK`.
func nextEvent(ctx context.Context, watching watch.Interface) (string, error) {
	select {
	case event, open := <-watching.ResultChan():
		if !open {
			return "", errWatchEnded
		}
		return describeEvent(event)
	case <-ctx.Done():
		return "", fmt.Errorf("no event: %w", ctx.Err())
	}
}

func describeEvent(event watch.Event) (string, error) {
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

// expectEvent fails unless this is the next event.
func expectEvent(ctx context.Context, watching watch.Interface, expected string) error {
	got, err := nextEvent(ctx, watching)
	if err == nil && got != expected {
		err = fmt.Errorf("%q", got)
	}
	if err != nil {
		return fmt.Errorf("expected %q, got: %w", expected, err)
	}
	return nil
}
