// A Google Cloud Storage for tests, in memory, on one port of 127.0.0.1: fake-gcs-server, and what its clients need
// beside it. It prints {"url", "certificate"} on stdout, each request on stderr, and stops at the end of stdin. A line
// "down" on stdin closes the port and all its connections, in the middle of what they do; "up" opens it again, with the
// objects as they were, as a server does that is restarted on its disk. Each is answered by itself on stdout.
//
// TensorFlow knows no other address than https://storage.googleapis.com and https://www.googleapis.com. With the url as
// its HTTPS_PROXY and the certificate as its CURL_CA_BUNDLE, these are here too.
package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

var hosts = []string{"storage.googleapis.com", "www.googleapis.com"}

func main() {
	log.SetFlags(0)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	address := "http://" + listener.Addr().String()
	objects := flag.Int("objects", 0, "how many the bucket \"large\" holds; 0 is no such bucket")
	flag.Parse()
	storage := must(fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener: true, ExternalURL: address, PublicHost: hosts[0],
	}))
	handler := logged(large(*objects, batched(conditional(storage))))
	certificate := newCertificate()
	accepted := make(tunnels)
	go http.Serve(accepted, handler)
	server := &http.Server{Handler: proxy(accepted, certificate, handler)}
	go server.Serve(listener)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]string{"url": address, "certificate": string(authority)}))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); fmt.Println(lines.Text()) {
		if lines.Text() == "down" {
			must(0, server.Close())
		} else {
			server = &http.Server{Handler: server.Handler}
			go server.Serve(must(net.Listen("tcp", listener.Addr().String())))
		}
	}
}

// large serves a bucket "large" of many objects of 1 KB: images/label-00/0000000.jpg, in 100 folders, and again in one
// folder, flat/0000000.jpg. fake-gcs-server looks through all objects at each upload, so it cannot hold so many.
func large(count int, next http.Handler) http.Handler {
	const folders, page = 100, 1000
	objects := regexp.MustCompile(`^(/download)?/storage/v1/b/large/o(?:/(.+))?$`)
	folder := regexp.MustCompile(`^(?:flat/|images/label-(\d\d)/)$`)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		match, query := objects.FindStringSubmatch(r.URL.Path), r.URL.Query()
		answer := map[string]any{}
		if match == nil || count == 0 {
			next.ServeHTTP(w, r)
			return
		} else if match[1] != "" {
			w.Write(make([]byte, 1024))
			return
		} else if match[2] != "" {
			refuse(w, http.StatusNotFound, "no such object")
			return
		} else if found := folder.FindStringSubmatch(query.Get("prefix")); found != nil {
			total, name := count, func(n int) string { return fmt.Sprintf("flat/%07d.jpg", n) }
			if found[1] != "" {
				label := must(strconv.Atoi(found[1]))
				total = count / folders
				name = func(n int) string { return fmt.Sprintf("images/label-%02d/%07d.jpg", label, n*folders+label) }
			}
			start := sort.Search(total, func(n int) bool { return name(n) >= query.Get("startOffset") })
			if token := query.Get("pageToken"); token != "" {
				start = must(strconv.Atoi(token))
			}
			size := page
			if most, err := strconv.Atoi(query.Get("maxResults")); err == nil {
				size = min(most, page)
			}
			if end := query.Get("endOffset"); end != "" {
				total = sort.Search(total, func(n int) bool { return name(n) >= end })
			}
			items := []map[string]string{}
			for n := start; n < total && n < start+size; n++ {
				items = append(items, map[string]string{
					"name": name(n), "size": "1024", "generation": "1", "bucket": "large",
				})
			}
			answer["items"] = items
			if start+size < total {
				answer["nextPageToken"] = strconv.Itoa(start + size)
			}
		} else if query.Get("delimiter") != "" {
			prefixes := []string{}
			for n := range folders {
				prefixes = append(prefixes, fmt.Sprintf("images/label-%02d/", n))
			}
			answer["prefixes"] = prefixes
		} else {
			answer["items"] = []map[string]string{{"name": "images/label-00/0000000.jpg", "size": "1024"}}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(answer)
	})
}

func logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Println(r.Method, r.Host, r.RequestURI, r.Header.Get("Range"))
		next.ServeHTTP(w, r)
	})
}

// batched runs the requests of a batch in their order; fake-gcs-server leaves out those without a Content-ID.
func batched(next http.Handler) http.Handler {
	run := func(w http.ResponseWriter, r *http.Request) error {
		_, fields, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil {
			return err
		}
		parts := multipart.NewReader(r.Body, fields["boundary"])
		body := new(bytes.Buffer)
		answers := multipart.NewWriter(body)
		for {
			part, err := parts.NextPart()
			if err == io.EOF {
				break
			} else if err != nil {
				return err
			}
			// gcsfs ends the headers of a request with one line break, not with two.
			request, err := http.ReadRequest(bufio.NewReader(io.MultiReader(part, strings.NewReader("\r\n\r\n"))))
			if err != nil {
				return err
			}
			recorder := httptest.NewRecorder()
			next.ServeHTTP(recorder, request)
			header := textproto.MIMEHeader{"Content-Type": {"application/http"}}
			if id := part.Header.Get("Content-ID"); id != "" {
				header.Set("Content-ID", "<response-"+strings.TrimPrefix(id, "<"))
			}
			answer := must(answers.CreatePart(header))
			result := recorder.Result()
			result.ContentLength = int64(recorder.Body.Len())
			must(0, result.Write(answer))
		}
		must(0, answers.Close())
		w.Header().Set("Content-Type", "multipart/mixed; boundary="+answers.Boundary())
		_, err = w.Write(body.Bytes())
		return err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/batch/storage/v1" {
			next.ServeHTTP(w, r)
		} else if err := run(w, r); err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
		}
	})
}

var ofObject = regexp.MustCompile(
	`^(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)(?:/compose|/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)|/moveTo/o/([^/]+))?$`)

// conditional holds requests to the generations that they name; fake-gcs-server does so for uploads alone.
func conditional(storage *fakestorage.Server) http.Handler {
	var lock sync.Mutex
	next := storage.HTTPHandler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names := ofObject.FindStringSubmatch(r.URL.EscapedPath())
		if names == nil {
			next.ServeHTTP(w, r)
			return
		}
		source, target := names[1:3], names[1:3]
		if names[3] != "" {
			target = names[3:5]
		} else if names[5] != "" {
			target = []string{names[1], names[5]}
		}
		objects := map[string][]string{"ifGenerationMatch": target, "ifSourceGenerationMatch": source}
		lock.Lock() // the generation stays until the request is done
		defer lock.Unlock()
		for parameter, values := range r.URL.Query() {
			object, known := objects[parameter]
			if known && strconv.FormatInt(generation(storage, object), 10) != values[0] {
				refuse(w, http.StatusPreconditionFailed, parameter+" does not hold")
				return
			} else if !known && strings.HasPrefix(parameter, "if") {
				refuse(w, http.StatusNotImplemented, parameter+" is not emulated")
				return
			}
		}
		if names[5] != "" {
			move(w, source, target, next)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// move copies an object within its bucket and deletes it, by escaped names; fake-gcs-server does not know the request.
func move(w http.ResponseWriter, source, target []string, next http.Handler) {
	address := fmt.Sprintf("/storage/v1/b/%s/o/%s", source[0], source[1])
	copied := httptest.NewRecorder()
	next.ServeHTTP(copied, httptest.NewRequest(
		http.MethodPost, fmt.Sprintf("%s/rewriteTo/b/%s/o/%s", address, target[0], target[1]), nil))
	if copied.Code != http.StatusOK {
		refuse(w, copied.Code, "no such object")
		return
	}
	var answer struct{ Resource json.RawMessage }
	must(0, json.Unmarshal(copied.Body.Bytes(), &answer))
	next.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, address, nil))
	w.Header().Set("Content-Type", "application/json")
	w.Write(answer.Resource)
}

// generation of an object by its escaped names; 0 where there is none.
func generation(storage *fakestorage.Server, names []string) int64 {
	bucket, _ := url.PathUnescape(names[0])
	name, _ := url.PathUnescape(names[1])
	object, err := storage.GetObjectStreaming(bucket, name)
	if err != nil {
		return 0
	}
	object.Close()
	return object.Generation
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "message": message}})
}

// proxy hands what comes through a CONNECT to one of the hosts over to tunnels, and refuses all other hosts.
func proxy(accepted tunnels, certificate tls.Certificate, next http.Handler) http.Handler {
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			next.ServeHTTP(w, r)
			return
		}
		if !slices.Contains(hosts, strings.TrimSuffix(r.Host, ":443")) {
			log.Println("refused", r.Host)
			refuse(w, http.StatusForbidden, r.Host+" is not emulated")
			return
		}
		connection, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			fmt.Fprint(connection, "HTTP/1.1 200 OK\r\n\r\n")
			accepted <- tls.Server(connection, config)
		}
	})
}

// tunnels is a net.Listener of connections that were made through the proxy.
type tunnels chan net.Conn

func (t tunnels) Accept() (net.Conn, error) { return <-t, nil }
func (t tunnels) Close() error              { return nil }
func (t tunnels) Addr() net.Addr            { return &net.TCPAddr{} }

// newCertificate is its own authority.
func newCertificate() tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: hosts, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatalln(err)
	}
	return value
}
