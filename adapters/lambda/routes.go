package lambda

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/server/intake"
)

const functions = "/2015-03-31/functions"

var routes = []route{
	{"Invoke", "POST", functions + "/{function}/invocations", access.Invoke, maxInvoke, (*server).invoke},
	{"InvokeWithResponseStream", "POST", "/2021-11-15/functions/{function}/response-streaming-invocations", access.Invoke, maxInvoke, (*server).invokeStream},

	{"CreateFunction", "POST", functions, access.Deploy, maxCode, (*server).createFunction},
	{"UpdateFunctionCode", "PUT", functions + "/{function}/code", access.Deploy, maxCode, (*server).updateCode},
	{"UpdateFunctionConfiguration", "PUT", functions + "/{function}/configuration", access.Deploy, maxRequest, (*server).updateConfiguration},
	{"GetFunction", "GET", functions + "/{function}", access.Read, maxRequest, (*server).getFunction},
	{"GetFunctionConfiguration", "GET", functions + "/{function}/configuration", access.Read, maxRequest, (*server).getConfiguration},
	{"ListFunctions", "GET", functions, access.Read, maxRequest, (*server).listFunctions},
	{"DeleteFunction", "DELETE", functions + "/{function}", access.Deploy, maxRequest, (*server).deleteFunction},

	{"PublishVersion", "POST", functions + "/{function}/versions", access.Deploy, maxRequest, (*server).publishVersion},
	{"ListVersionsByFunction", "GET", functions + "/{function}/versions", access.Read, maxRequest, (*server).listVersions},
	{"CreateAlias", "POST", functions + "/{function}/aliases", access.Deploy, maxRequest, (*server).createAlias},
	{"ListAliases", "GET", functions + "/{function}/aliases", access.Read, maxRequest, (*server).listAliases},
	{"GetAlias", "GET", functions + "/{function}/aliases/{alias}", access.Read, maxRequest, (*server).getAlias},
	{"UpdateAlias", "PUT", functions + "/{function}/aliases/{alias}", access.Deploy, maxRequest, (*server).updateAlias},
	{"DeleteAlias", "DELETE", functions + "/{function}/aliases/{alias}", access.Deploy, maxRequest, (*server).deleteAlias},

	{"PutFunctionConcurrency", "PUT", "/2017-10-31/functions/{function}/concurrency", access.Deploy, maxRequest, (*server).putConcurrency},
	{"GetFunctionConcurrency", "GET", "/2019-09-30/functions/{function}/concurrency", access.Read, maxRequest, (*server).getConcurrency},
	{"DeleteFunctionConcurrency", "DELETE", "/2017-10-31/functions/{function}/concurrency", access.Deploy, maxRequest, (*server).deleteConcurrency},

	{"GetAccountSettings", "GET", "/2016-08-19/account-settings", access.Read, maxRequest, (*server).accountSettings},
}

// New returns the API's handler.
func New(cfg Config) http.Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &server{Config: cfg, receiving: intake.Slots[netip.Prefix]{All: maxReceiving, Of: maxReceivingOf}, codes: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.serve(rt, w, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.serve(route{action: "unsupported", max: maxRequest, handle: (*server).unsupported}, w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; len(p) > 1 && strings.HasSuffix(p, "/") { // boto3 requests lists with a trailing slash
			c := *r.URL
			c.Path, c.RawPath = strings.TrimSuffix(p, "/"), strings.TrimSuffix(c.RawPath, "/")
			r2 := *r // keep RequestURI, because the signature covers RequestURI
			r2.URL = &c
			r = &r2
		}
		mux.ServeHTTP(w, r)
	})
}
