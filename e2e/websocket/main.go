// The WebSocket libraries of Kubernetes, to test skewbridge-websocket against: gorilla, which
// its clients and tunnels use, and x/net, which its servers use.
//
//	websocket serve ADDRESS
//	websocket dial LIBRARY URL
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 2 && arguments[0] == "serve":
		err = serve(arguments[1])
	case len(arguments) == 3 && arguments[0] == "dial" && arguments[1] == "gorilla":
		err = dialGorilla(arguments[2])
	case len(arguments) == 3 && arguments[0] == "dial" && arguments[1] == "x-net":
		err = dialNet(arguments[2])
	default:
		err = fmt.Errorf("usage: websocket serve ADDRESS | dial gorilla|x-net URL")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
