// A stand-in for a node: a kubelet's streaming side without a container
// runtime. Its containers are processes of this host in one scratch directory.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	address := flag.String("listen", "127.0.0.1:10250", "where to listen")
	certificate := flag.String("tls-cert-file", "", "what to show to clients")
	key := flag.String("tls-private-key-file", "", "its key")
	clientCA := flag.String("client-ca-file", "", "who signs clients; others are not served")
	scratch := flag.String("scratch", "", "the working directory of every process")
	flag.Parse()

	clients, err := authority(*clientCA)
	if err != nil {
		log.Fatal(err)
	}
	server := http.Server{
		Addr:    *address,
		Handler: routes(container{directory: *scratch}),
		TLSConfig: &tls.Config{
			ClientCAs:  clients,
			ClientAuth: tls.RequireAndVerifyClientCert,
		},
	}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}

func authority(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("no certificate in %s", file)
	}
	return pool, nil
}
