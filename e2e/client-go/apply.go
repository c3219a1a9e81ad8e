package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

type applySeen struct {
	Wire     []string
	Conflict []string
	// Whose fields they are at the end.
	Managers  []string
	Extracted map[string]string
}

// apply lets two managers have a field each, quarrel about one of them, and
// settle it by force.
func apply(ctx context.Context, t target) (any, error) {
	t, wire := t.recorded()
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	as := func(manager string, force bool, data map[string]string) (*corev1.ConfigMap, error) {
		wish := applycorev1.ConfigMap("shared", t.namespace).WithData(data)
		return objects.Apply(ctx, wish, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := as("first", false, map[string]string{"a": "1"}); err != nil {
		return nil, err
	}
	if _, err := as("second", false, map[string]string{"b": "2"}); err != nil {
		return nil, err
	}
	_, err = as("second", false, map[string]string{"a": "2", "b": "2"})
	if !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("instead of a conflict: %v", err)
	}
	conflict := causes(err)
	object, err := as("second", true, map[string]string{"a": "2", "b": "2"})
	if err != nil {
		return nil, err
	}
	extracted, err := applycorev1.ExtractConfigMap(object, "second")
	if err != nil {
		return nil, err
	}
	return applySeen{
		Wire:      wire.seen(),
		Conflict:  conflict,
		Managers:  managers(object),
		Extracted: extracted.Data,
	}, nil
}

func causes(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var texts []string
	for _, cause := range status.Status().Details.Causes {
		texts = append(texts, fmt.Sprintf("%s of %s: %s", cause.Type, cause.Field, cause.Message))
	}
	return texts
}

func managers(object *corev1.ConfigMap) []string {
	var texts []string
	for _, entry := range object.ManagedFields {
		texts = append(texts, fmt.Sprintf("%s %s %s", entry.Manager, entry.Operation, entry.FieldsV1.Raw))
	}
	slices.Sort(texts)
	return texts
}
