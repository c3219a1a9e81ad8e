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
	many     = 25
	pageSize = 10
)

type pagesSeen struct {
	Wire  []string
	Pages []string
	Names []string
}

// pages of a long list hold every object once.
func pages(ctx context.Context, t target) (any, error) {
	t, wire := t.recorded()
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	for number := range many {
		object := configMap(fmt.Sprintf("c-%02d", number), nil)
		if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	seen := pagesSeen{}
	reader := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := objects.List(ctx, options)
		if err != nil {
			return nil, err
		}
		seen.Pages = append(seen.Pages, describe(page))
		return page, nil
	})
	reader.PageSize = pageSize
	times := map[string]int{}
	err = reader.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		name := object.(*corev1.ConfigMap).Name
		times[name]++
		seen.Names = append(seen.Names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(seen.Names) != many || len(times) != many {
		return nil, fmt.Errorf("not %d objects once each: %v", many, times)
	}
	// Without the requests that made the objects.
	seen.Wire = wire.seen()[many:]
	return seen, nil
}

func describe(page *corev1.ConfigMapList) string {
	if page.RemainingItemCount == nil {
		return fmt.Sprintf("%d", len(page.Items))
	}
	return fmt.Sprintf("%d, then %d more", len(page.Items), *page.RemainingItemCount)
}
