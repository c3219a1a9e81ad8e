module skewbridge.dev/e2e/websocket

go 1.26.0

require (
	github.com/gorilla/websocket v1.5.3
	golang.org/x/net v0.57.0
)
