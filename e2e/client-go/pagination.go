package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

const (
	objectCount = 25
	pageSize    = 10
)

type paginationResult struct {
	Requests []string
	Pages    []string
	Names    []string
}

// pagination checks that the pages of a long list have every object once.
func pagination(ctx context.Context, t target) (any, error) {
	t, recorder := t.withRecorder()
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	for number := range objectCount {
		object := configMap(fmt.Sprintf("c-%02d", number), nil)
		if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	result := paginationResult{}
	reader := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := objects.List(ctx, options)
		if err != nil {
			return nil, err
		}
		result.Pages = append(result.Pages, describePage(page))
		return page, nil
	})
	reader.PageSize = pageSize
	times := map[string]int{}
	err = reader.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		name := object.(*corev1.ConfigMap).Name
		times[name]++
		result.Names = append(result.Names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(result.Names) != objectCount || len(times) != objectCount {
		return nil, fmt.Errorf("expected %d objects once each, got: %v", objectCount, times)
	}
	// Without the requests that created the objects.
	result.Requests = recorder.recordedExchanges()[objectCount:]
	return result, nil
}

func describePage(page *corev1.ConfigMapList) string {
	if page.RemainingItemCount == nil {
		return fmt.Sprintf("%d", len(page.Items))
	}
	return fmt.Sprintf("%d, then %d more", len(page.Items), *page.RemainingItemCount)
}
