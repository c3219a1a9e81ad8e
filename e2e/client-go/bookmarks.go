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

// The time of bookmarks is not guaranteed, so a watch without one is followed by another.
const maxWatches = 5

// streamingList reads a streaming list up to the bookmark that ends it. A server without
// streaming lists refuses the request with an error that is part of the result.
func streamingList(ctx context.Context, objects typedcorev1.ConfigMapInterface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	sendInitialEvents := true
	watching, err := objects.Watch(ctx, metav1.ListOptions{
		AllowWatchBookmarks:  true,
		SendInitialEvents:    &sendInitialEvents,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if apierrors.IsInvalid(err) {
		return []string{"refused: " + err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	defer watching.Stop()
	expected := []string{"ADDED before", "BOOKMARK after the initial events"}
	for _, event := range expected {
		if err := expectEvent(ctx, watching, event); err != nil {
			return nil, err
		}
	}
	return expected, nil
}

// watchToBookmark reads a watch to its end and past a bookmark.
func watchToBookmark(ctx context.Context, objects typedcorev1.ConfigMapInterface) ([]string, error) {
	for range maxWatches {
		bookmarked, err := watchToEnd(ctx, objects)
		if err != nil {
			return nil, err
		}
		if bookmarked {
			return []string{"BOOKMARK", "end of watch"}, nil
		}
	}
	return nil, fmt.Errorf("no bookmark in %d watches of %d s", maxWatches, watchSeconds)
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
	// A server sends a bookmark only if the resource version has increased: here, by an
	// object that this watch does not select.
	if err := objects.Delete(ctx, "other", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if _, err := objects.Create(ctx, configMap("other", nil), metav1.CreateOptions{}); err != nil {
		return false, err
	}
	for {
		event, err := nextEvent(ctx, watching)
		switch {
		case errors.Is(err, errWatchEnded):
			return bookmarked, nil
		case err != nil:
			return false, err
		case event != "BOOKMARK":
			return false, fmt.Errorf("expected a bookmark, got: %q", event)
		}
		bookmarked = true
	}
}
