package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Pause after a conflict, as a work queue makes it.
const conflictDelay = 200 * time.Millisecond

// cachedObject is the object that the check updates. It exists before.
type cachedObject struct {
	resource schema.GroupVersionResource
	// In the namespace of the check, or of none.
	namespaced bool
	name       string
	update     func(context.Context, kubernetes.Interface, string, runtime.Object) (metav1.Object, error)
}

var cachedObjects = map[string]cachedObject{
	"csidrivers": {
		resource: storagev1.SchemeGroupVersion.WithResource("csidrivers"),
		name:     "vault",
		update: func(ctx context.Context, client kubernetes.Interface, _ string, object runtime.Object) (metav1.Object, error) {
			return client.StorageV1().CSIDrivers().Update(ctx, object.(*storagev1.CSIDriver), metav1.UpdateOptions{})
		},
	},
	"persistentvolumeclaims": {
		resource:   corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		namespaced: true,
		name:       "data",
		update: func(ctx context.Context, client kubernetes.Interface, namespace string, object runtime.Object) (metav1.Object, error) {
			claims := client.CoreV1().PersistentVolumeClaims(namespace)
			return claims.Update(ctx, object.(*corev1.PersistentVolumeClaim), metav1.UpdateOptions{})
		},
	},
	"horizontalpodautoscalers": {
		resource:   autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
		namespaced: true,
		name:       "web",
		update: func(ctx context.Context, client kubernetes.Interface, namespace string, object runtime.Object) (metav1.Object, error) {
			autoscalers := client.AutoscalingV2().HorizontalPodAutoscalers(namespace)
			return autoscalers.Update(ctx, object.(*autoscalingv2.HorizontalPodAutoscaler), metav1.UpdateOptions{})
		},
	},
}

type updateFromCacheResult struct {
	Conflicts int
	Labels    map[string]string
}

// updateFromCache is the loop of a controller: it takes an object from the cache of its informer,
// changes a label and updates the object, until there is no conflict. It never reads the object
// from the server itself.
func updateFromCache(ctx context.Context, t target) (any, error) {
	kind, known := cachedObjects[t.resource]
	if !known {
		names := slices.Sorted(maps.Keys(cachedObjects))
		return nil, fmt.Errorf("--resource is one of %s", strings.Join(names, ", "))
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	factory := kubeinformers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	defer stop()
	informer, err := factory.ForResource(kind.resource)
	if err != nil {
		return nil, err
	}
	get := informer.Lister().Get
	if kind.namespaced {
		get = informer.Lister().ByNamespace(t.namespace).Get
	}
	hasSynced := informer.Informer().HasSynced
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), hasSynced) {
		return nil, fmt.Errorf("the cache is not complete: %w", ctx.Err())
	}
	result := updateFromCacheResult{}
	for {
		cached, err := get(kind.name)
		if err != nil {
			return nil, err
		}
		changed := cached.DeepCopyObject()
		metadata, err := meta.Accessor(changed)
		if err != nil {
			return nil, err
		}
		labels := map[string]string{}
		maps.Copy(labels, metadata.GetLabels())
		labels["updated-by"] = "controller"
		metadata.SetLabels(labels)
		updated, err := kind.update(ctx, client, t.namespace, changed)
		switch {
		case err == nil:
			result.Labels = updated.GetLabels()
			return result, nil
		case !apierrors.IsConflict(err):
			return nil, err
		}
		result.Conflicts++
		select {
		case <-time.After(conflictDelay):
		case <-ctx.Done():
			return nil, fmt.Errorf("after %d conflicts: %w", result.Conflicts, err)
		}
	}
}
