// Package sbom describes the contents of an image as a bill of materials in CycloneDX 1.6
// (ECMA-424), JSON: the image's parts, each with a package URL (github.com/package-url/purl-spec),
// and the Debian packages of its base. The same image gives the same bytes: the document holds no
// time, and its serial number derives from the image's digest.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// MediaType is the type of the document, and of its artifact at a registry.
const MediaType = "application/vnd.cyclonedx+json"

type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	SerialNumber string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Pedigree   *pedigree  `json:"pedigree,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"` // hexadecimal
}

type pedigree struct {
	Commits []commit `json:"commits"`
}

type commit struct {
	ID string `json:"uid"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// CycloneDX describes an image of the store. Unknown facts are left out: if a function's base
// environment has left the store, its Debian packages are missing. The property "fre:packages"
// names the source of the packages, or "unknown". sites
// describe the parts that are packages.
func CycloneDX(s *store.Store, img *store.Image, sites []image.Site) ([]byte, error) {
	c, err := image.ConfigOf(img)
	if err != nil {
		return nil, err
	}
	packaging := packagingOf(sites)
	found := map[string]*component{}
	add := func(x component, properties ...property) {
		have := found[x.Ref]
		if have == nil {
			have = &x
			found[x.Ref] = have
		} else if !slices.Equal(have.Hashes, x.Hashes) {
			have.Hashes = nil // two hashes: the right one is unknown
		}
		for _, p := range properties { // one package may be in several places
			if p.Value != "" && !slices.Contains(have.Properties, p) {
				have.Properties = append(have.Properties, p)
			}
		}
	}
	for _, p := range img.Parts {
		if p.Kind == "config" { // of an ordinary image
			continue
		}
		add(ofPart(p, packaging), property{"fre:kind", p.Kind}, property{"fre:prefix", p.Prefix}, property{"fre:tree", string(p.Tree)})
	}
	packages, hashes, known := debianPackages(s, img, &c)
	for name, v := range packages {
		add(verified(library(name, v, "pkg:deb/debian/"+escape(name)+"@"+escape(v)), hashes[name]))
	}
	name, v := "fre", ""
	if i := strings.LastIndexByte(img.Built, ':'); i >= 0 {
		name, v = img.Built[:i], img.Built[i+1:]
	} else if len(img.Names) > 0 {
		name = img.Names[0]
	}
	root := component{
		Type: "container", Ref: string(img.Digest), Name: name, Version: v,
		Properties: []property{{"fre:base", c.Base}, {"fre:packages", known}, {"fre:runtime", c.Runtime}},
	}
	root.Properties = slices.DeleteFunc(root.Properties, func(p property) bool { return p.Value == "" })
	doc := document{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		SerialNumber: serial(img.Digest), Metadata: metadata{root}, Components: []component{},
		Dependencies: []dependency{{string(img.Digest), []string{}}},
	}
	for _, x := range found {
		slices.SortFunc(x.Properties, func(a, b property) int {
			return strings.Compare(a.Name+"\x00"+a.Value, b.Name+"\x00"+b.Value)
		})
		doc.Components = append(doc.Components, *x)
		doc.Dependencies[0].DependsOn = append(doc.Dependencies[0].DependsOn, x.Ref)
	}
	slices.SortFunc(doc.Components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	slices.Sort(doc.Dependencies[0].DependsOn)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err = e.Encode(doc)
	return b.Bytes(), err
}

// algorithms maps names in [store.Part.Hash] to CycloneDX's.
var algorithms = map[string]string{"sha1": "SHA-1", "sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512"}

var (
	hashPattern   = regexp.MustCompile(`^(?:sha1:[0-9a-f]{40}|sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$`)
	commitPattern = regexp.MustCompile(`^git:(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
)

// verified adds the hash that verified a component, or its commit. An image made elsewhere may hold
// a malformed value: it is left out.
func verified(x component, by string) component {
	algorithm, content, _ := strings.Cut(by, ":")
	switch {
	case hashPattern.MatchString(by):
		x.Hashes = []hash{{algorithms[algorithm], content}}
	case commitPattern.MatchString(by):
		x.Pedigree = &pedigree{[]commit{{content}}}
	}
	return x
}

// ofPart describes one part.
func ofPart(p store.Part, packaging map[string]image.Packaging) component {
	by := p.Hash
	if p.Diff != "" {
		by = string(p.Diff)
	}
	return verified(named(p, packaging), by)
}

// packagingOf returns the sites' descriptions of packages by the kind of their parts.
func packagingOf(sites []image.Site) map[string]image.Packaging {
	packaging := map[string]image.Packaging{}
	for _, site := range sites {
		if p, ok := site.(image.Packaged); ok {
			of := p.Packaging()
			for _, kind := range of.Kinds {
				packaging[kind] = of
			}
		}
	}
	return packaging
}

func named(p store.Part, packaging map[string]image.Packaging) component {
	at := "@" + escape(p.Version)
	if of, ok := packaging[p.Kind]; ok {
		name := p.Name
		if of.URLName != nil {
			name = of.URLName(name)
		}
		if name != "" {
			return library(p.Name, p.Version, "pkg:"+of.Type+"/"+escapePath(name)+at)
		}
	}
	if p.Kind == "deb" {
		return library(p.Name, p.Version, "pkg:deb/debian/"+escape(p.Name)+at)
	}
	// Parts that FRE makes, and layers: the tree is the version.
	kind := "framework"
	switch p.Kind {
	case "base":
		kind = "operating-system"
	case "code":
		kind = "application"
	case "layer":
		kind = "container"
	}
	return component{Type: kind, Ref: p.Kind + ":" + string(p.Tree) + ":" + p.Prefix, Name: strings.TrimSpace(p.Kind + " " + p.Name), Version: p.Version}
}

func library(name, version, purl string) component {
	return component{Type: "library", Ref: purl, Name: name, Version: version, PURL: strings.TrimSuffix(purl, "@")}
}

// escape percent-encodes a name or version for a package URL: a colon stays.
func escape(s string) string {
	return strings.NewReplacer("+", "%2B", "%3A", ":", "@", "%40", "&", "%26", "=", "%3D", "$", "%24").Replace(url.PathEscape(s))
}

// escapePath is escape for names of several components.
func escapePath(s string) string {
	parts := strings.Split(s, "/")
	for i, p := range parts {
		parts[i] = escape(p)
	}
	return strings.Join(parts, "/")
}

// serial is a UUID (RFC 9562, version 8) made of the digest.
func serial(d store.Digest) string {
	sum := sha256.Sum256([]byte("fre sbom 1\n" + d))
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// debianPackages returns the Debian packages of the image's base, and the source of that list: the
// image's configuration, the configuration of the base environment with the same tree, dpkg's
// status file in the image, or "unknown". The first two sources also give the packages' hashes,
// unless the configuration is old.
func debianPackages(s *store.Store, img *store.Image, c *image.Config) (packages, hashes map[string]string, known string) {
	if len(c.Packages) > 0 {
		return c.Packages, c.PackageHashes, "configuration"
	}
	if c.Container == nil && len(img.Parts) > 0 {
		for _, other := range s.Images() {
			if len(other.Parts) == 0 || other.Parts[0].Tree != img.Parts[0].Tree {
				continue
			}
			if b, err := image.ConfigOf(other); err == nil && len(b.Packages) > 0 {
				return b.Packages, b.PackageHashes, "base environment"
			}
		}
	}
	if packages = installed(s.Rootfs(img.Digest)); len(packages) > 0 {
		return packages, nil, "dpkg"
	}
	return nil, nil, "unknown"
}

// maxStatus allows some 20,000 packages.
const maxStatus = 32 << 20

// installed reads dpkg's status file; nil without a valid one. os.Root keeps the image's symlinks
// from leading out of the root.
func installed(rootfs string) map[string]string {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.Open("var/lib/dpkg/status")
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Type() != fs.FileMode(0) || st.Size() > maxStatus {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return nil
	}
	packages, err := debian.ParseStatus(b)
	if err != nil {
		return nil
	}
	return packages
}
