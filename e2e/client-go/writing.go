package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

const (
	betweenWrites = 300 * time.Millisecond
	// After a request that came to nothing.
	beforeRetry = 200 * time.Millisecond
	// Nobody is asked for longer, so that a request lost is noticed.
	perRequest = 15 * time.Second
	// How often an object is changed before every second one is deleted.
	changes = 2
	// Where the number of the change is.
	stepKey = "step"
)

// writer writes objects of one resource through one bridge, one after the other.
type writer struct {
	by      string
	kind    *followed
	objects dynamic.ResourceInterface
	faults  *faults
	// What has been acknowledged, and what was refused in the meantime.
	done    atomic.Int64
	refused atomic.Int64
}

// run goes on until it is told to stop, and then ends what it has begun.
func (w *writer) run(ctx context.Context, stop <-chan struct{}, ended *sync.WaitGroup) {
	defer ended.Done()
	for number := 0; ; number++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		name := fmt.Sprintf("%s-%d", w.by, number)
		if err := w.live(ctx, name, number%2 == 1); err != nil {
			w.faults.add("a writer's trouble", "%s %s: %v", w.kind.resource.Resource, name, err)
			return
		}
	}
}

// live is the life of an object. Every second one stays.
func (w *writer) live(ctx context.Context, name string, ends bool) error {
	object, err := w.create(ctx, name)
	for step := 1; err == nil && step <= changes; step++ {
		pause(ctx, betweenWrites)
		object, err = w.change(ctx, object, fmt.Sprint(step))
	}
	pause(ctx, betweenWrites)
	if err == nil && ends {
		err = w.remove(ctx, object)
	}
	return err
}

// create goes on until the object is there, by whichever of its requests.
func (w *writer) create(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	unsure := false
	for {
		made, err := w.asked(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Create(ctx, w.kind.object(name), metav1.CreateOptions{})
		})
		switch {
		case err == nil:
			return made, w.acknowledged(made)
		case ctx.Err() != nil:
			return nil, err
		case apierrors.IsAlreadyExists(err) && unsure:
			return w.found(ctx, name, "0")
		case isAnswer(err):
			return nil, err
		}
		unsure = true
		pause(ctx, beforeRetry)
	}
}

// change goes on until the object has this step.
func (w *writer) change(ctx context.Context, object *unstructured.Unstructured, step string) (*unstructured.Unstructured, error) {
	unsure := false
	wanted := object.DeepCopy()
	wanted.SetAnnotations(map[string]string{stepKey: step})
	for {
		made, err := w.asked(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Update(ctx, wanted, metav1.UpdateOptions{})
		})
		switch {
		case err == nil:
			return made, w.acknowledged(made)
		case ctx.Err() != nil:
			return nil, err
		case apierrors.IsConflict(err) && unsure:
			return w.found(ctx, object.GetName(), step)
		case isAnswer(err):
			return nil, err
		}
		unsure = true
		pause(ctx, beforeRetry)
	}
}

// remove goes on until the object is gone.
func (w *writer) remove(ctx context.Context, object *unstructured.Unstructured) error {
	unsure := false
	uid := object.GetUID()
	w.kind.ledger.leaves(uid)
	for {
		_, err := w.asked(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return nil, w.objects.Delete(ctx, object.GetName(), metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid},
			})
		})
		switch {
		case err == nil || apierrors.IsNotFound(err) && unsure:
			w.kind.ledger.left(uid)
			w.done.Add(1)
			return nil
		case ctx.Err() != nil || isAnswer(err):
			return err
		}
		unsure = true
		pause(ctx, beforeRetry)
	}
}

// found is the object as a request left it whose answer was lost.
func (w *writer) found(ctx context.Context, name, step string) (*unstructured.Unstructured, error) {
	for {
		made, err := w.asked(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Get(ctx, name, metav1.GetOptions{})
		})
		switch {
		case err == nil && made.GetAnnotations()[stepKey] != step:
			return nil, fmt.Errorf("it is at step %s instead of %s", made.GetAnnotations()[stepKey], step)
		case err == nil:
			return made, w.acknowledged(made)
		case ctx.Err() != nil || isAnswer(err):
			return nil, err
		}
		pause(ctx, beforeRetry)
	}
}

func (w *writer) acknowledged(made *unstructured.Unstructured) error {
	w.done.Add(1)
	return w.kind.ledger.wrote(made)
}

// asked is one request. While nobody serves the resource, not to find it is true:
// then it is no answer.
func (w *writer) asked(ctx context.Context, request func(context.Context) (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	absent := w.kind.isAbsent()
	ctx, cancel := context.WithTimeout(ctx, perRequest)
	defer cancel()
	made, err := request(ctx)
	if err != nil {
		w.refused.Add(1)
	}
	if apierrors.IsNotFound(err) && (absent || w.kind.isAbsent()) {
		return nil, errAbsent
	}
	return made, err
}

var errAbsent = fmt.Errorf("nobody serves it")

// isAnswer is whether a server has decided about a request; all else may come to
// something or to nothing.
func isAnswer(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) ||
		apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsMethodNotSupported(err)
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}
