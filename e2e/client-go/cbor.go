package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

// cbor uses a dynamic client with CBOR, on servers that support it.
func cbor(ctx context.Context, t target) (any, error) {
	t, recorder := t.withRecorder()
	client, err := dynamic.NewForConfig(t.config)
	if err != nil {
		return nil, err
	}
	objects := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(t.namespace)

	if _, err := objects.Create(ctx, unstructuredConfigMap("1"), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	got, err := objects.Get(ctx, "encoded", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if value, _, err := unstructured.NestedString(got.Object, "data", "a"); err != nil || value != "1" {
		return nil, fmt.Errorf("the data changed to %v", got.Object["data"])
	}
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d objects in the list instead of 1", len(list.Items))
	}

	watching, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	defer watching.Stop()
	applying := metav1.ApplyOptions{FieldManager: "checks", Force: true}
	if _, err := objects.Apply(ctx, "encoded", unstructuredConfigMap("2"), applying); err != nil {
		return nil, err
	}
	if err := objects.Delete(ctx, "encoded", metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	events := []string{"MODIFIED encoded", "DELETED encoded"}
	for _, event := range events {
		if err := expectEvent(ctx, watching, event); err != nil {
			return nil, err
		}
	}
	if _, err := objects.Get(ctx, "encoded", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("expected NotFound, got: %v", err)
	}
	return encodedResult{Requests: recorder.recordedExchanges(), Watch: events}, recorder.requireContentType(runtime.ContentTypeCBOR)
}

func unstructuredConfigMap(value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": "encoded"},
		"data":       map[string]any{"a": value},
	}}
}
