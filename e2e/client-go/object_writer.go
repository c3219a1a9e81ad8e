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
	writeInterval = 300 * time.Millisecond
	// Pause after a failed request.
	retryDelay = 200 * time.Millisecond
	// A lost request is detected after this time.
	requestTimeout = 15 * time.Second
	// How often an object is updated. Every second one is then deleted.
	updatesPerObject = 2
	// The annotation with the number of the update.
	stepKey = "step"
)

// objectWriter writes objects of one resource through one bridge, one after the other.
type objectWriter struct {
	bridge     string
	kind       *testResource
	objects    dynamic.ResourceInterface
	violations *violations
	// Acknowledged writes, and failed requests.
	done   atomic.Int64
	errors atomic.Int64
}

// run writes objects until stop is closed, and completes the last one.
func (w *objectWriter) run(ctx context.Context, stop <-chan struct{}, ended *sync.WaitGroup) {
	defer ended.Done()
	for number := 0; ; number++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		name := fmt.Sprintf("%s-%d", w.bridge, number)
		if err := w.runLifecycle(ctx, name, number%2 == 1); err != nil {
			w.violations.add("write failed", "%s %s: %v", w.kind.resource.Resource, name, err)
			return
		}
	}
}

// runLifecycle creates, updates and deletes an object. Every second one is not deleted.
func (w *objectWriter) runLifecycle(ctx context.Context, name string, deleteAtEnd bool) error {
	object, err := w.create(ctx, name)
	for step := 1; err == nil && step <= updatesPerObject; step++ {
		pause(ctx, writeInterval)
		object, err = w.update(ctx, object, fmt.Sprint(step))
	}
	pause(ctx, writeInterval)
	if err == nil && deleteAtEnd {
		err = w.delete(ctx, object)
	}
	return err
}

// create retries until the object exists, created by any of the attempts.
func (w *objectWriter) create(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	outcomeUnknown := false
	for {
		made, err := w.send(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Create(ctx, w.kind.object(name), metav1.CreateOptions{})
		})
		switch {
		case err == nil:
			return made, w.recordWrite(made)
		case ctx.Err() != nil:
			return nil, err
		case apierrors.IsAlreadyExists(err) && outcomeUnknown:
			return w.getAfterLostResponse(ctx, name, "0")
		case isDefinitive(err):
			return nil, err
		}
		outcomeUnknown = true
		pause(ctx, retryDelay)
	}
}

// update retries until the object is at this step.
func (w *objectWriter) update(ctx context.Context, object *unstructured.Unstructured, step string) (*unstructured.Unstructured, error) {
	outcomeUnknown := false
	wanted := object.DeepCopy()
	wanted.SetAnnotations(map[string]string{stepKey: step})
	for {
		made, err := w.send(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Update(ctx, wanted, metav1.UpdateOptions{})
		})
		switch {
		case err == nil:
			return made, w.recordWrite(made)
		case ctx.Err() != nil:
			return nil, err
		case apierrors.IsConflict(err) && outcomeUnknown:
			return w.getAfterLostResponse(ctx, object.GetName(), step)
		case isDefinitive(err):
			return nil, err
		}
		outcomeUnknown = true
		pause(ctx, retryDelay)
	}
}

// delete retries until the object is deleted.
func (w *objectWriter) delete(ctx context.Context, object *unstructured.Unstructured) error {
	outcomeUnknown := false
	uid := object.GetUID()
	w.kind.writeLog.markDeleting(uid)
	for {
		_, err := w.send(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return nil, w.objects.Delete(ctx, object.GetName(), metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid},
			})
		})
		switch {
		case err == nil || apierrors.IsNotFound(err) && outcomeUnknown:
			w.kind.writeLog.markDeleted(uid)
			w.done.Add(1)
			return nil
		case ctx.Err() != nil || isDefinitive(err):
			return err
		}
		outcomeUnknown = true
		pause(ctx, retryDelay)
	}
}

// getAfterLostResponse reads an object after a write whose response was lost.
func (w *objectWriter) getAfterLostResponse(ctx context.Context, name, step string) (*unstructured.Unstructured, error) {
	for {
		made, err := w.send(ctx, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.objects.Get(ctx, name, metav1.GetOptions{})
		})
		switch {
		case err == nil && made.GetAnnotations()[stepKey] != step:
			return nil, fmt.Errorf("the object is at step %s instead of %s", made.GetAnnotations()[stepKey], step)
		case err == nil:
			return made, w.recordWrite(made)
		case ctx.Err() != nil || isDefinitive(err):
			return nil, err
		}
		pause(ctx, retryDelay)
	}
}

func (w *objectWriter) recordWrite(made *unstructured.Unstructured) error {
	w.done.Add(1)
	return w.kind.writeLog.recordWrite(made)
}

// send sends one request. While no server serves the resource, 404 is not definitive: the
// request is retried.
func (w *objectWriter) send(ctx context.Context, request func(context.Context) (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	unserved := w.kind.isUnserved()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	made, err := request(ctx)
	if err != nil {
		w.errors.Add(1)
	}
	if apierrors.IsNotFound(err) && (unserved || w.kind.isUnserved()) {
		return nil, errUnserved
	}
	return made, err
}

var errUnserved = fmt.Errorf("no server serves the resource")

// isDefinitive reports whether a server has processed a request and refused it. After any
// other error the request may or may not have been executed.
func isDefinitive(err error) bool {
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
