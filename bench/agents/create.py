"""How long a sandbox for an agent takes, from the request for it to its first command's output: python3 create.py SOCKET, with an engine there that has the base native."""
import http.client, json, socket, sys, time


class C(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(sys.argv[1])


took = []
for i in range(60):
    c = C("fre"); t = time.perf_counter()
    c.request("POST", "/v1/agents", '{"image":"native"}'); a = json.loads(c.getresponse().read())
    t1 = time.perf_counter()
    c.request("POST", f"/v1/agents/{a['id']}/exec", '{"args":["echo","x"]}'); r = c.getresponse(); line = r.readline()
    took.append((time.perf_counter()-t, t1-t)); assert b"stdout" in line, line
    r.read(); c.request("DELETE", f"/v1/agents/{a['id']}"); c.getresponse().read()
took.sort(); print("p50 %.1f ms p99 %.1f ms, of it create %.1f" % (took[30][0]*1e3, took[59][0]*1e3, sorted(x[1] for x in took)[30]*1e3))
