package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// encodedResult is the result of a client that uses another encoding than JSON.
type encodedResult struct {
	Requests []string
	Watch    []string
}

// All byte values, and enough of them that a server compresses its response.
var everyByte = func() []byte {
	row := make([]byte, 256)
	for value := range row {
		row[value] = byte(value)
	}
	return bytes.Repeat(row, 1024)
}()

// protobuf uses a typed client with protobuf, as the components of Kubernetes do.
func protobuf(ctx context.Context, t target) (any, error) {
	t, recorder := t.withRecorder()
	t.config.ContentType = runtime.ContentTypeProtobuf
	t.config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	objects, err := t.configMaps()
	if err != nil {
		return nil, err
	}

	object := configMap("encoded", nil)
	object.BinaryData = map[string][]byte{"every": everyByte}
	if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	got, err := objects.Get(ctx, "encoded", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(got.BinaryData["every"], everyByte) {
		return nil, errors.New("the data has changed in transit")
	}
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 || !bytes.Equal(list.Items[0].BinaryData["every"], everyByte) {
		return nil, fmt.Errorf("%d objects in the list instead of 1, or the data differs", len(list.Items))
	}

	watching, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer watching.Stop()
	got.Data = map[string]string{"a": "1"}
	if _, err := objects.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
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
	return encodedResult{Requests: recorder.recordedExchanges(), Watch: events}, recorder.requireContentType(runtime.ContentTypeProtobuf)
}
