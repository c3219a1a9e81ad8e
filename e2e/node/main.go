// A fake node: the streaming server of a kubelet without a container runtime. Its
// containers are processes of this host in one scratch directory.
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
	address := flag.String("listen", "127.0.0.1:10250", "address to listen on")
	certificate := flag.String("tls-cert-file", "", "serving certificate")
	key := flag.String("tls-private-key-file", "", "private key of the serving certificate")
	clientCA := flag.String("client-ca-file", "", "CAs of client certificates, which are required")
	scratch := flag.String("scratch", "", "working directory of all processes")
	flag.Parse()

	clients, err := certPool(*clientCA)
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

func certPool(file string) (*x509.CertPool, error) {
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
