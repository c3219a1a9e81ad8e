package main

import (
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	xnet "golang.org/x/net/websocket"
)

// fragment is the payload of the frames that messages are cut into.
const fragment = 1000

func serve(address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/gorilla", serveGorilla)
	mux.Handle("/x-net", xnet.Server{Handshake: first, Handler: serveNet})
	return http.ListenAndServe(address, mux)
}

// serveGorilla sends back what it gets, in fragments with pings between them,
// and closes when and as it is told: "close CODE REASON".
func serveGorilla(writer http.ResponseWriter, request *http.Request) {
	upgrader := websocket.Upgrader{
		// As much as it writes in a frame.
		WriteBufferSize: fragment,
		Subprotocols:    []string{"v5.channel.k8s.io"},
	}
	connection, err := upgrader.Upgrade(writer, request, nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer connection.Close()
	for {
		kind, message, err := connection.ReadMessage()
		if err != nil {
			log.Print(err)
			return
		}
		if words := strings.SplitN(string(message), " ", 3); len(words) == 3 && words[0] == "close" {
			code, _ := strconv.Atoi(words[1])
			closing := websocket.FormatCloseMessage(code, words[2])
			_ = connection.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Minute))
			continue
		}
		if err := inFragments(connection, kind, message); err != nil {
			log.Print(err)
			return
		}
	}
}

func inFragments(connection *websocket.Conn, kind int, message []byte) error {
	writer, err := connection.NextWriter(kind)
	if err != nil {
		return err
	}
	for len(message) > 0 {
		part := message[:min(len(message), 3*fragment)]
		message = message[len(part):]
		if _, err := writer.Write(part); err != nil {
			return err
		}
		deadline := time.Now().Add(time.Minute)
		if err := connection.WriteControl(websocket.PingMessage, []byte("between"), deadline); err != nil {
			return err
		}
	}
	return writer.Close()
}

// first takes the first offer, as kubelets do with one that they know.
func first(config *xnet.Config, _ *http.Request) error {
	if len(config.Protocol) == 0 {
		config.Protocol = []string{""}
	}
	config.Protocol = config.Protocol[:1]
	return nil
}

func serveNet(connection *xnet.Conn) {
	for {
		var message []byte
		if err := xnet.Message.Receive(connection, &message); err != nil {
			if err != io.EOF {
				log.Print(err)
			}
			return
		}
		if err := xnet.Message.Send(connection, message); err != nil {
			log.Print(err)
			return
		}
	}
}
