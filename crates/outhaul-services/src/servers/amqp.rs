//! RabbitMQ, with a port mapper, a cookie and a distribution port of its own, all on loopback.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    files::directory(&server.data())?;
    let cookie: String = std::iter::repeat_with(fastrand::alphanumeric).take(20).collect();
    files::write(&server.directory().join(".erlang.cookie"), cookie)?;
    files::write(&server.directory().join("plugins"), "[].\n")?;
    let address = server.address();
    let access = match server.access() {
        Access::Plain => format!("listeners.tcp.default = {address}"),
        Access::Password => {
            format!("listeners.tcp.default = {address}\ndefault_user = {USER}\ndefault_pass = {PASSWORD}")
        }
        Access::Tls => tls(server, "verify_none", false),
        Access::MutualTls => tls(server, "verify_peer", true),
    };
    let base = "disk_free_limit.absolute = 50MB";
    files::write(&server.directory().join("rabbitmq.conf"), super::lines(server, &[base, &access]))
}

fn tls(server: &Server, verify: &str, certificate: bool) -> String {
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    format!(
        "listeners.tcp = none\nlisteners.ssl.default = {}\nssl_options.cacertfile = {ca}\n\
         ssl_options.certfile = {cert}\nssl_options.keyfile = {key}\nssl_options.verify = {verify}\n\
         ssl_options.fail_if_no_peer_cert = {certificate}",
        server.address()
    )
}

pub(super) fn commands(server: &Server) -> Vec<Command> {
    let [_, distribution, mapper] = server.ports[..] else { return Vec::new() };
    // Started by us, so that Erlang does not leave one behind.
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &mapper.to_string()]);
    let mut rabbit = Command::new(&server.program);
    let directory = server.directory();
    rabbit.env("HOME", directory).current_dir(directory);
    rabbit.env("ERL_EPMD_PORT", mapper.to_string()).env("ERL_EPMD_ADDRESS", "127.0.0.1");
    // Without a shell between, so that signals reach Erlang.
    rabbit.env("RUNNING_UNDER_SYSTEMD", "1").env_remove("NOTIFY_SOCKET");
    rabbit.env("RABBITMQ_NODENAME", format!("outhaul{distribution}@localhost"));
    rabbit.env("RABBITMQ_DIST_PORT", distribution.to_string());
    rabbit.env("RABBITMQ_CONFIG_FILE", directory.join("rabbitmq.conf"));
    rabbit.env("RABBITMQ_CONF_ENV_FILE", directory.join("none"));
    rabbit.env("RABBITMQ_ENABLED_PLUGINS_FILE", directory.join("plugins"));
    rabbit.env("RABBITMQ_MNESIA_BASE", server.data());
    rabbit.env("RABBITMQ_LOG_BASE", directory.join("logs"));
    rabbit.env("RABBITMQ_LOGS", "-");
    rabbit.env("RABBITMQ_PID_FILE", directory.join("pid"));
    let erlang = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2";
    rabbit.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erlang);
    vec![epmd, rabbit]
}
