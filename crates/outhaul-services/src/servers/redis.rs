//! redis-server, which syncs before it answers.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    files::directory(&server.data())?;
    let port = server.address().port();
    let base = format!(
        "bind 127.0.0.1\ndir {}\nappendonly yes\nappendfsync always\nsave \"\"\ndaemonize no",
        server.data().display()
    );
    let access = match server.access() {
        Access::Plain => format!("port {port}"),
        Access::Password => {
            // Nobody can be the default user, and yet it needs its rights: the server reads its append-only file as
            // this user, and leaves out what stands in a transaction otherwise.
            format!("port {port}\nuser default off ~* &* +@all\nuser {USER} on >{PASSWORD} ~* &* +@all")
        }
        Access::Tls => tls(server, "no"),
        Access::MutualTls => tls(server, "yes"),
    };
    files::write(&server.directory().join("redis.conf"), super::lines(server, &[&base, &access]))
}

fn tls(server: &Server, clients: &str) -> String {
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    format!(
        "port 0\ntls-port {}\ntls-ca-cert-file {ca}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-auth-clients {clients}",
        server.address().port()
    )
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    command.arg(server.directory().join("redis.conf"));
    command
}
