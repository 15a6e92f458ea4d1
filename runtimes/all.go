// Package runtimes lists the languages of functions, the contents of base environments and the
// package sites. Each language is a package below.
package runtimes

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/git"
	"github.com/fre-engine/fre/runtimes/golang"
	"github.com/fre-engine/fre/runtimes/httpserver"
	"github.com/fre-engine/fre/runtimes/java"
	"github.com/fre-engine/fre/runtimes/native"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/runtimes/ruby"
	"github.com/fre-engine/fre/template"
)

// Bases returns every base environment.
func Bases() []image.Base {
	return []image.Base{
		{Name: "python", Spec: PythonBase(), Finish: python.FinishBase},
		{Name: "agent", Spec: AgentBase(), Finish: python.FinishBase},
		{Name: "node", Spec: NodeBase()},
		{Name: "java", Spec: JavaBase(), Finish: java.FinishBase(JavaTools())},
		{Name: "php", Spec: PHPBase(), Finish: php.FinishBase},
		{Name: "ruby", Spec: RubyBase()},
		{Name: "native", Spec: NativeBase()},
	}
}

// All returns every runtime.
func All() []image.Runtime {
	return []image.Runtime{
		python.Runtime{},
		node.Runtime{},
		java.Runtime{Tools: JavaTools()},
		php.Runtime{},
		ruby.Runtime{},
		native.Runtime{},
		golang.Runtime{Tools: PythonTools()},
		httpserver.Runtime{},
	}
}

// Dialect returns the template language of all bases, runtimes and sites.
func Dialect() *template.Dialect { return image.Dialect(Bases(), All(), Sites()) }

// Repository returns the fetcher of code from git.
func Repository() image.Repository { return git.Repository{} }

// Sites returns every package site.
func Sites() []image.Site {
	return []image.Site{
		python.Site{Tools: PythonTools(), Compilers: PythonCompilers()},
		node.Site{Tools: NodeTools(), Compilers: NodeCompilers()},
		java.Site{JDK: JavaTools(), Tools: MavenTools()},
		php.Site{Tools: PHPTools()},
		ruby.Site{Compilers: RubyCompilers()},
	}
}
