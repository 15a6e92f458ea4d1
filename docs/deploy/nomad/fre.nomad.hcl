# One engine on each client with Linux. A client's name is the node's: lower-case
# letters, digits and dashes. Clients allow raw_exec, and let a task take a minute to stop:
#
#   client { max_kill_timeout = "60s" }
#   plugin "raw_exec" { config { enabled = true } }
job "fre" {
  type        = "system"
  datacenters = ["*"]

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  update {
    max_parallel = 1
    stagger      = "30s"
  }

  group "fre" {
    network {
      port "http" {
        static = 8080
      }
    }

    service {
      name     = "fre"
      port     = "http"
      provider = "nomad"

      # 503 while the node drains.
      check {
        type     = "http"
        path     = "/healthz"
        interval = "5s"
        timeout  = "2s"
      }
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    task "fre" {
      driver       = "raw_exec"
      user         = "root"
      kill_signal  = "SIGTERM"
      kill_timeout = "60s"

      config {
        command = "/usr/local/bin/fre"
        args    = ["serve", "--config", "${NOMAD_TASK_DIR}/fre.yaml", "--listen", "${NOMAD_ADDR_http}", "--drain", "30s"]
      }

      # Where root has logged in to the registry: docker login.
      env {
        HOME = "/root"
      }

      template {
        destination = "local/fre.yaml"
        change_mode = "restart"
        data        = <<YAML
events:
  nats: nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222
  credentials: /etc/fre/nats.creds
  replicas: 3
cluster:
  node: {{ env "node.unique.name" }}
  registry: registry.example.org/fre
  key_file: /etc/fre/cluster.key
  address: {{ env "NOMAD_ADDR_http" }}
YAML
      }

      # Of the engine. Sandboxes have cgroups of their own outside of Nomad's: keep
      # their share back by the client's reserved block.
      resources {
        cpu    = 500
        memory = 1024
      }
    }
  }
}
