// A SPDY server and client with moby/spdystream, the library of kubectl, kube-apiserver,
// kubelets and container runtimes.
//
//	spdystream serve ADDRESS   handles each stream as its headers specify
//	spdystream call ADDRESS    tests all of these behaviours of a server; fails on a deviation
package main

import (
	"fmt"
	"log"
	"net"
	"os"

	"github.com/moby/spdystream"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: spdystream serve|call ADDRESS")
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(os.Args[2])
	case "call":
		err = call(os.Args[2])
	default:
		err = fmt.Errorf("unknown command %q", os.Args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		connection, err := spdystream.NewConnection(socket, true)
		if err != nil {
			return err
		}
		go connection.Serve(handleStream)
	}
}
