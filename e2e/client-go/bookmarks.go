package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// A server sends a bookmark two seconds before the end of a watch.
const watchSeconds = 4

// Bookmarks are promised for no certain time, so a watch without one is
// followed by another.
const watchesAtMost = 5

// streamingList reads up to the bookmark that ends a list. A server that knows
// no such lists refuses, and says so in the same words by every way.
func streamingList(ctx context.Context, objects typedcorev1.ConfigMapInterface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	initially := true
	watching, err := objects.Watch(ctx, metav1.ListOptions{
		AllowWatchBookmarks:  true,
		SendInitialEvents:    &initially,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if apierrors.IsInvalid(err) {
		return []string{"refused: " + err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	defer watching.Stop()
	wanted := []string{"ADDED before", "BOOKMARK after the initial events"}
	for _, event := range wanted {
		if err := await(ctx, watching, event); err != nil {
			return nil, err
		}
	}
	return wanted, nil
}

// watchToBookmark reads a watch to its end and past a bookmark.
func watchToBookmark(ctx context.Context, objects typedcorev1.ConfigMapInterface) ([]string, error) {
	for range watchesAtMost {
		bookmarked, err := watchToEnd(ctx, objects)
		if err != nil {
			return nil, err
		}
		if bookmarked {
			return []string{"BOOKMARK", "the end"}, nil
		}
	}
	return nil, fmt.Errorf("none in %d watches of %d s", watchesAtMost, watchSeconds)
}

func watchToEnd(ctx context.Context, objects typedcorev1.ConfigMapInterface) (bookmarked bool, err error) {
	object, err := objects.Get(ctx, "before", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	seconds := int64(watchSeconds)
	watching, err := objects.Watch(ctx, metav1.ListOptions{
		AllowWatchBookmarks: true,
		FieldSelector:       "metadata.name=before",
		ResourceVersion:     object.ResourceVersion,
		TimeoutSeconds:      &seconds,
	})
	if err != nil {
		return false, err
	}
	defer watching.Stop()
	// A bookmark only comes when there is something newer to tell: here, that
	// an object has changed which this watch is not about.
	if err := objects.Delete(ctx, "other", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if _, err := objects.Create(ctx, configMap("other", nil), metav1.CreateOptions{}); err != nil {
		return false, err
	}
	for {
		event, err := nextEvent(ctx, watching)
		switch {
		case errors.Is(err, errEnded):
			return bookmarked, nil
		case err != nil:
			return false, err
		case event != "BOOKMARK":
			return false, fmt.Errorf("instead of a bookmark: %q", event)
		}
		bookmarked = true
	}
}
