package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// target is what a check works on.
type target struct {
	kubeconfig     string
	config         *rest.Config
	namespace      string
	pod, container string
}

// newTarget finds the server as programs do: by a file that they are given, or else
// by KUBECONFIG.
func newTarget(ctx context.Context, kubeconfig, namespace string) (target, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return target{}, err
	}
	// The library would hold requests back on its own side.
	config.QPS = -1
	made := target{kubeconfig: kubeconfig, config: config, namespace: namespace}
	client, err := made.client()
	if err != nil {
		return target{}, err
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return target{}, fmt.Errorf("namespace %s: %w", namespace, err)
	}
	return made, nil
}

// client is a new one at every call.
func (t target) client() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(rest.CopyConfig(t.config))
}

// configMaps are what most checks work with: plain data, served by every
// version, and touched by no controller.
func (t target) configMaps() (typedcorev1.ConfigMapInterface, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return client.CoreV1().ConfigMaps(t.namespace), nil
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}
