module skewbridge.dev/e2e/spdystream

go 1.26.0

require github.com/moby/spdystream v0.5.1
