// Makes the queue directories beside it as MinIO does: entries are bare records, batches go through the S2 block
// encoder of github.com/klauspost/compress, which Debian has as golang-github-klauspost-compress-dev.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run make.go
//
// The order of the entries is that of their modification times, which no checkout keeps: `order.txt` tells it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
)

type m map[string]interface{}

func record(bucket, key, name string) []byte {
	bytes, err := json.Marshal(m{
		"eventVersion": "2.0", "eventSource": "minio:s3", "awsRegion": "",
		"eventTime": "2026-02-11T10:00:00.123Z", "eventName": name,
		"userIdentity":      m{"principalId": "alice"},
		"requestParameters": m{"sourceIPAddress": "10.0.0.1"},
		"responseElements":  m{"x-amz-request-id": "1"},
		"s3": m{
			"s3SchemaVersion": "1.0", "configurationId": "Config",
			"bucket": m{"name": bucket, "ownerIdentity": m{"principalId": "alice"}, "arn": "arn:aws:s3:::" + bucket},
			"object": m{"key": key, "size": 7, "eTag": "e", "contentType": "text/plain", "sequencer": "1"},
		},
		"source": m{"host": "10.0.0.1", "port": "", "userAgent": "mc"},
	})
	check(err)
	return bytes
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

var order []string

// Each file is a second younger than the one before it, whatever its name is.
func write(dir, name string, content []byte) {
	path := filepath.Join(dir, name)
	check(os.WriteFile(path, content, 0o644))
	at := time.Unix(1700000000+int64(len(order)), 0)
	check(os.Chtimes(path, at, at))
	order = append(order, name)
}

func main() {
	dir := "minio-webhook-primary"
	check(os.RemoveAll(dir))
	check(os.Mkdir(dir, 0o755))
	put := "s3:ObjectCreated:Put"
	write(dir, "f3b0c442-98fc-4c14-9afb-f4c8996fb924.event", record("photos", "first.jpg", put))
	write(dir, "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9.event", record("photos", "2026%2FGr%C3%B6%C3%9Fe+2.jpg", put))
	var batch []byte
	for n := 0; n < 20; n++ {
		batch = append(batch, record("photos", fmt.Sprintf("%d.jpg", n), put)...)
		batch = append(batch, '\n')
	}
	write(dir, "20:7c9e6679-7425-40de-944b-e07fc1f90ae7.event.snappy", s2.Encode(nil, batch))
	write(dir, "16fd2706-8baf-433b-82eb-8c7fada847da.event", record("photos", "gone.jpg", "s3:ObjectRemoved:Delete"))
	// Nothing is synced there, so a crash leaves files that are empty or torn.
	write(dir, "6ecd8c99-4036-403d-bf84-cf8400f67836.event", nil)
	write(dir, "3f333df6-90a4-4fda-8dd3-9485d27cee36.event", record("photos", "torn.jpg", put)[:99])
	write(dir, "21:9b2c1d3e-4f50-4617-8283-94a5b6c7d8e9.event.snappy", s2.Encode(nil, batch))
	check(os.WriteFile("order.txt", []byte(strings.Join(order, "\n")+"\n"), 0o644))
}
