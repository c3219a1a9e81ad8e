package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorilla/websocket"
	xnet "golang.org/x/net/websocket"
)

// protocol is the subprotocol that both ends support.
const protocol = "v5.channel.k8s.io"

// lengths are message lengths: those at which the frame header changes, and some more.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 125, 126, 127, 999, 65535, 65536, 65537, 1 << 20}

// dialGorilla checks that the server echoes each message, answers each ping with a pong, and
// closes with the same code.
func dialGorilla(url string) error {
	dialer := websocket.Dialer{Subprotocols: []string{"unknown", protocol}, WriteBufferSize: fragmentBytes}
	connection, response, err := dialer.Dial(url, nil)
	if err != nil {
		return fmt.Errorf("handshake: %w (%v)", err, response)
	}
	defer connection.Close()
	if got := connection.Subprotocol(); got != protocol {
		return fmt.Errorf("subprotocol %q", got)
	}
	pongs := 0
	connection.SetPongHandler(func(payload string) error {
		if payload != "are you there" {
			return fmt.Errorf("pong with %q", payload)
		}
		pongs++
		return nil
	})
	for _, length := range lengths {
		ping := []byte("are you there")
		if err := connection.WriteControl(websocket.PingMessage, ping, time.Now().Add(time.Minute)); err != nil {
			return err
		}
		for _, kind := range []int{websocket.BinaryMessage, websocket.TextMessage} {
			message := randomBytes(length)
			if kind == websocket.TextMessage {
				message = bytes.Repeat([]byte("ä€😀"), length/9+1)
			}
			if err := connection.WriteMessage(kind, message); err != nil {
				return err
			}
			gotKind, got, err := connection.ReadMessage()
			if err != nil {
				return err
			}
			if gotKind != kind || !bytes.Equal(got, message) {
				return fmt.Errorf("sent %d bytes of type %d, received %d of type %d", len(message), kind, len(got), gotKind)
			}
		}
	}
	if pongs != len(lengths) {
		return fmt.Errorf("%d pongs instead of %d", pongs, len(lengths))
	}
	closing := websocket.FormatCloseMessage(4321, "enough")
	if err := connection.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, _, err = connection.ReadMessage()
	closed := &websocket.CloseError{}
	if !errors.As(err, &closed) || closed.Code != 4321 || closed.Text != "enough" {
		return fmt.Errorf("closed with %w", err)
	}
	return nil
}

// dialNet checks that the server echoes each message.
func dialNet(url string) error {
	config, err := xnet.NewConfig(url, "http://localhost/")
	if err != nil {
		return err
	}
	config.Protocol = []string{protocol}
	connection, err := xnet.DialConfig(config)
	if err != nil {
		return err
	}
	defer connection.Close()
	for _, length := range lengths {
		message := randomBytes(length)
		if err := xnet.Message.Send(connection, message); err != nil {
			return err
		}
		var got []byte
		if err := xnet.Message.Receive(connection, &got); err != nil {
			return err
		}
		if !bytes.Equal(got, message) {
			return fmt.Errorf("sent %d bytes, received %d", length, len(got))
		}
	}
	return nil
}

func randomBytes(length int) []byte {
	bytes := make([]byte, length)
	for index := range bytes {
		bytes[index] = byte(rand.Uint32())
	}
	return bytes
}
