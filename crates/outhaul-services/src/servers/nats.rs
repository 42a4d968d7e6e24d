//! nats-server, with JetStream that syncs each message.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    files::directory(&server.data())?;
    let listen = format!("listen: \"{}\"", server.address());
    let data = server.data();
    let store = format!("jetstream {{ store_dir: \"{}\", sync_interval: always }}", data.display());
    let access = match server.access() {
        Access::Plain => String::new(),
        Access::Password => format!("authorization {{ user: {USER}, password: \"{PASSWORD}\" }}"),
        Access::Tls => tls(server, "verify: false"),
        Access::MutualTls => tls(server, "verify: true"),
    };
    files::write(&server.directory().join("nats.conf"), super::lines(server, &[&listen, &store, &access]))
}

fn tls(server: &Server, verify: &str) -> String {
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    format!("tls {{ ca_file: \"{ca}\", cert_file: \"{cert}\", key_file: \"{key}\", {verify} }}")
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    command.arg("-c").arg(server.directory().join("nats.conf"));
    command
}
