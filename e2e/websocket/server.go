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

// fragmentBytes is the payload size of the frames into which messages are split.
const fragmentBytes = 1000

func serve(address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/gorilla", serveGorilla)
	mux.Handle("/x-net", xnet.Server{Handshake: selectFirst, Handler: serveNet})
	return http.ListenAndServe(address, mux)
}

// serveGorilla echoes each message, in fragments with pings between them. After the message
// "close CODE REASON" it closes the connection with that code and reason.
func serveGorilla(writer http.ResponseWriter, request *http.Request) {
	upgrader := websocket.Upgrader{
		// The library writes one frame per buffer.
		WriteBufferSize: fragmentBytes,
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
		if parts := strings.SplitN(string(message), " ", 3); len(parts) == 3 && parts[0] == "close" {
			code, _ := strconv.Atoi(parts[1])
			closing := websocket.FormatCloseMessage(code, parts[2])
			_ = connection.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Minute))
			continue
		}
		if err := writeFragments(connection, kind, message); err != nil {
			log.Print(err)
			return
		}
	}
}

func writeFragments(connection *websocket.Conn, kind int, message []byte) error {
	writer, err := connection.NextWriter(kind)
	if err != nil {
		return err
	}
	for len(message) > 0 {
		part := message[:min(len(message), 3*fragmentBytes)]
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

// selectFirst selects the first offered subprotocol, as kubelets do if they support it.
func selectFirst(config *xnet.Config, _ *http.Request) error {
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
