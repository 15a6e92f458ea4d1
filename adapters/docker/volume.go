package docker

import (
	"net/http"

	"github.com/moby/moby/api/types/volume"

	"github.com/fre-engine/fre/template"
)

// work describes the only volume: the tenant's persistent directory.
func work() volume.Volume {
	return volume.Volume{Driver: "local", Labels: map[string]string{labelTenant: template.DefaultTenant}, Mountpoint: workDir, Name: workVolume, Options: map[string]string{}, Scope: "local"}
}

func findVolume(name string) error {
	if name == workVolume {
		return nil
	}
	return notFound("get %s: no such volume: the only volume is %s, the tenant's directory", name, workVolume)
}

func volumeList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "name", "driver", "dangling", "label")
	if err != nil {
		return err
	}
	out := []volume.Volume{}
	if v := work(); f.like("name")(v.Name) && f.has("driver", v.Driver) && f.has("dangling", "false", "0") && f.labels(v.Labels) {
		out = append(out, v)
	}
	return reply(w, http.StatusOK, volume.ListResponse{Volumes: out})
}

func volumeInspect(w http.ResponseWriter, r *http.Request) error {
	if err := findVolume(r.PathValue("name")); err != nil {
		return err
	}
	return reply(w, http.StatusOK, work())
}
