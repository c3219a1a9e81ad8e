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

type serverSideApplyResult struct {
	Requests []string
	Conflict []string
	// The managed fields at the end.
	Managers  []string
	Extracted map[string]string
}

// serverSideApply applies an object with two field managers: each sets a field, the second
// gets a conflict about the field of the first, and then forces it.
func serverSideApply(ctx context.Context, t target) (any, error) {
	t, recorder := t.withRecorder()
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}
	as := func(manager string, force bool, data map[string]string) (*corev1.ConfigMap, error) {
		desired := applycorev1.ConfigMap("shared", t.namespace).WithData(data)
		return objects.Apply(ctx, desired, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := as("first", false, map[string]string{"a": "1"}); err != nil {
		return nil, err
	}
	if _, err := as("second", false, map[string]string{"b": "2"}); err != nil {
		return nil, err
	}
	_, err = as("second", false, map[string]string{"a": "2", "b": "2"})
	if !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("expected a conflict, got: %v", err)
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
	return serverSideApplyResult{
		Requests:  recorder.recordedExchanges(),
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
		texts = append(texts, fmt.Sprintf("%s in %s: %s", cause.Type, cause.Field, cause.Message))
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
