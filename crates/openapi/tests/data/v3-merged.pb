
3.0.0

Kubernetes21.34"é,
Â
/apis/apps/v1/¯"¬
apps_v1get available resources*getAppsV1APIResourcesBðÔ
200Ì
É
OKÂ
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
Œ
=/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scaleÊ"í
apps_v1read scale of the specif*#readAppsV1NamespacedDeploymentScaleB±•
200
Š
OKƒ
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
*ž
apps_v1replace scale of the spe*&replaceAppsV1NamespacedDeploymentScale2;
9
dryRunqueryWhen present, indicates R
 Êstring2A
?
fieldManagerqueryfieldManager is a name aR
 Êstring2D
B
fieldValidationqueryfieldValidation instructR
 Êstring:I
GC
A
*/*:
86
4#/components/schemas/io.k8s.api.autoscaling.v1.ScaleBÎ•
200
Š
OKƒ
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
4#/components/schemas/io.k8s.api.autoscaling.v1.Scaleš
201’

Createdƒ
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
x-kubernetes-actionput
jP
x-kubernetes-group-version-kind-+group: autoscaling
version: v1
kind: Scale
Rƒ
apps_v1partially update scale o*$patchAppsV1NamespacedDeploymentScale2;
9
dryRunqueryWhen present, indicates R
 Êstring2A
?
fieldManagerqueryfieldManager is a name aR
 Êstring2D
B
fieldValidationqueryfieldValidation instructR
 Êstring:­
ª¥
e
application/apply-patch+yamlE
CA
?#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch
d
application/json-patch+jsonE
CA
?#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch
e
application/merge-patch+jsonE
CA
?#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch
o
&application/strategic-merge-patch+jsonE
CA
?#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.PatchBÎ•
200
Š
OKƒ
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
4#/components/schemas/io.k8s.api.autoscaling.v1.Scaleš
201’

Createdƒ
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
x-kubernetes-actionpatch
jP
x-kubernetes-group-version-kind-+group: autoscaling
version: v1
kind: Scale
j3
1
namepathname of the Scale R
 Êstringj?
=
	namespacepathobject name and auth sco R
 Êstringj;
9
prettyqueryIf 'true', then the outpR
 Êstring
†
/apis/apps/v1/watch/daemonsetsã"’
apps_v1watch individual changes*(watchAppsV1DaemonSetListForAllNamespacesBÎ²
200ª
§
OK 
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
jM
x-kubernetes-group-version-kind*(group: apps
version: v1
kind: DaemonSet
jI
G
allowWatchBookmarksqueryallowWatchBookmarks requR
 Êbooleanj=
;
continuequeryThe continue option shouR
 ÊstringjB
@
fieldSelectorqueryA selector to restrict tR
 Êstring
‰
/apis/apps/v1/watch/deploymentså"”
apps_v1watch individual changes*)watchAppsV1DeploymentListForAllNamespacesBÎ²
200ª
§
OK 
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
 Êbooleanj=
;
continuequeryThe continue option shouR
 ÊstringjB
@
fieldSelectorqueryA selector to restrict tR
 Êstring*è
”
¢
io.k8s.api.autoscaling.v1.Scale
}Êobject’Scale represents a scali¢V
x-kubernetes-group-version-kind31- group: autoscaling
  kind: Scale
  version: v1

Õ
4io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceListœ
™ºgroupVersionº	resourcesÊobject’APIResourceList is a lis¢W
x-kubernetes-group-version-kind42- group: ""
  kind: APIResourceList
  version: v1

T
*io.k8s.apimachinery.pkg.apis.meta.v1.Patch&
$Êobject’Patch is provided to giv
¾
/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEventŠ
‡ºtypeºobjectÊobject’Event represents a singl¢Ï
x-kubernetes-group-version-kind«¨- group: ""
  kind: WatchEvent
  version: v1
- group: admission.k8s.io
  kind: WatchEvent
  version: v1
- group: admission.k8s.io
  kind: WatchEvent
  version: v1beta1
:O
M
BearerToken>
<
apiKeyBearer Token authenticationauthorization"header