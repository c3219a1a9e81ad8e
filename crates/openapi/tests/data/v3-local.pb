
3.0.0

Kubernetes21.34"π
¬
/apis/apps/v1/Ø"¨
apps_v1get available resources*getAppsV1APIResourcesB‘
200Ã
…
OK¬
c
application/jsonO
MK
I#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList
v
#application/vnd.kubernetes.protobufO
MK
I#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList
c
application/yamlO
MK
I#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList
401

Unauthorized
Â
=/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale£"Ì
apps_v1read scale of the specif*#readAppsV1NamespacedDeploymentScaleB±ï
200ç
ä
OKÉ
N
application/json:
86
4#/components/schemas/io.k8s.api.autoscaling.v1.Scale
a
#application/vnd.kubernetes.protobuf:
86
4#/components/schemas/io.k8s.api.autoscaling.v1.Scale
N
application/yaml:
86
4#/components/schemas/io.k8s.api.autoscaling.v1.Scale
401

Unauthorizedj
x-kubernetes-actionget
jP
x-kubernetes-group-version-kind-+group: autoscaling
version: v1
kind: Scale
j3
1
namepathname of the Scale R
† stringj?
=
	namespacepathobject name and auth sco R
† stringj;
9
prettyqueryIf 'true', then the outpR
† string
â
/apis/apps/v1/watch/deploymentsÂ"î
apps_v1watch individual changes*)watchAppsV1DeploymentListForAllNamespacesBŒ≤
200™
ß
OK†
^
application/jsonJ
HF
D#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent
k
application/json;stream=watchJ
HF
D#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent
q
#application/vnd.kubernetes.protobufJ
HF
D#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent
~
0application/vnd.kubernetes.protobuf;stream=watchJ
HF
D#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent
^
application/yamlJ
HF
D#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent
401

Unauthorizedj#
x-kubernetes-action
watchlist
jN
x-kubernetes-group-version-kind+)group: apps
version: v1
kind: Deployment
jI
G
allowWatchBookmarksqueryallowWatchBookmarks requR
† booleanj=
;
continuequeryThe continue option shouR
† stringjB
@
fieldSelectorqueryA selector to restrict tR
† string*ó
î
¢
io.k8s.api.autoscaling.v1.Scale
} objectíScale represents a scali¢V
x-kubernetes-group-version-kind31- group: autoscaling
  kind: Scale
  version: v1

’
4io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceListú
ô∫groupVersion∫	resources objectíAPIResourceList is a lis¢W
x-kubernetes-group-version-kind42- group: ""
  kind: APIResourceList
  version: v1

T
*io.k8s.apimachinery.pkg.apis.meta.v1.Patch&
$ objectíPatch is provided to giv
æ
/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEventä
á∫type∫object objectíEvent represents a singl¢œ
x-kubernetes-group-version-kind´®- group: ""
  kind: WatchEvent
  version: v1
- group: admission.k8s.io
  kind: WatchEvent
  version: v1
- group: admission.k8s.io
  kind: WatchEvent
  version: v1beta1
